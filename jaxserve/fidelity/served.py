"""The cost model against measured servers: many GPUs, FP8 and FP4 weights, experts.

TPOT is compared, in a closed loop that keeps ``concurrency`` equal requests in flight:

    TPOT = t(decode of all slots) + (concurrency - 1) / output * t(prefill added by one prompt)

Requests that began together end together, and the next ones come together: prompts that are short
enough share an iteration, and the sum counts iterations. An engine that gives prompts iterations of
their own keeps equal requests in step: all prompts of a round are prefilled one after the other,
and half of that, on average, is a request's wait for its first token, the other half its pause
after it. TTFT is not compared: it carries the wait for a slot of the load generator.

Constants that no kernel shows are fitted to two thirds of the rows and judged on the third, three
times over. The shipped constants are older than the rows of versions under which DeepSeek drafts
tokens, it seems; what those versions have of their own was fitted with all else held, which
predicts held-out thirds better (8.2 %) than a fit of all constants together (8.4 %).
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from jaxserve.datafiles import load_json
from jaxserve.fidelity.rows import FidelityRow
from jaxserve.fidelity.served_rows import DOUBTS, FILE, FOLDS, ServedRow, served_rows, shipped
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import ServedGpu, Stack, load_engine

TOKEN_BUDGET = 8192
"""Tokens per iteration of the measured engines: default of TensorRT-LLM, and of the benchmarks'
recipes for vLLM."""
SHARED_TOKENS = 1024
"""Prompt tokens that are prefilled together. The one run with shorter prompts (TensorRT-LLM, 128 to
1,024 tokens) loses no time to prompts that fit together in so many; longer ones go alone."""
FEWEST_ROWS = 8
"""Rows that a version of an engine needs for a host time of its own."""
LARGEST_SHARE = 1.0
"""Most that a fitted share of a peak, or the spread of routing, can be."""
LEAST_HOST_S = 2e-4
"""Least host time that a fit may find: no scheduler is faster."""
HOPPER = ("h100-sxm-80gb", "h200-sxm-141gb")
BLACKWELL = ("b200-sxm-180gb", "gb200-nvl72-186gb")

Served = tuple[str, str, int, Stack]


@dataclass(frozen=True)
class Constant:
    """A constant that is fitted, and the servers that have it."""

    name: str
    """what it is called in messages."""
    group: str
    """``engine``, ``linear``, ``expert_linear`` or ``gpu``: where in ``ServedGpu`` it is."""
    field: str
    """name of the field there."""
    applies: Callable[[Served], bool]
    """whether it is one of this server's."""

    @property
    def is_share(self) -> bool:
        """Whether it is a share of what the hardware could do."""
        return self.field.endswith("efficiency") or self.group == "gpu"

    def of(self, gpu: ServedGpu) -> float:
        """Its value."""
        if self.group == "gpu":
            return getattr(gpu, self.field)
        group = getattr(gpu, self.group)
        return getattr(group if self.group == "engine" else group[0], self.field)

    def put(self, gpu: ServedGpu, value: float) -> ServedGpu:
        """``gpu`` with this value."""
        if self.group == "gpu":
            return dataclasses.replace(gpu, **{self.field: value})
        if self.group == "engine":
            engine = dataclasses.replace(gpu.engine, **{self.field: value})
            return dataclasses.replace(gpu, engine=engine, host_s=engine.host_s)
        fits = getattr(gpu, self.group)
        changed = tuple(dataclasses.replace(fit, **{self.field: value}) for fit in fits)
        return dataclasses.replace(gpu, **{self.group: changed})


def fitted_constants(rows: Sequence[ServedRow]) -> list[Constant]:
    """The constants that these rows determine."""
    constants = []
    versions: defaultdict[tuple[str, str | None], list[ServedRow]] = defaultdict(list)
    for row in rows:
        versions[row.stack.engine, row.stack.version].append(row)
    single = {key for key, group in versions.items() if key[1] and len(group) >= FEWEST_ROWS}

    def host_of(engine: str, version: str | None) -> Callable[[Served], bool]:
        def applies(server: Served) -> bool:
            key = (server[3].engine, server[3].version)
            return key == (engine, version) if version else key[0] == engine and key not in single

        return applies

    for engine in sorted({row.stack.engine for row in rows}):
        own = sorted(version for name, version in single if name == engine and version)
        for version in (*own, None):
            constants.append(
                Constant(f"host {engine} {version}", "engine", "host_s", host_of(engine, version))
            )
            constants.append(
                Constant(
                    f"expert layer {engine} {version}",
                    "engine",
                    "expert_layer_s",
                    _and(host_of(engine, version), _has_experts),
                )
            )
        if not load_engine(engine).prefill_first:
            for field, kind in (("eager_layer_s", _dense), ("eager_expert_layer_s", _has_experts)):
                applies = _and(_engine(engine), kind)
                constants.append(Constant(f"{field} {engine}", "engine", field, applies))
    for family in (HOPPER, BLACKWELL):
        for name in ("fp8", "fp4", "mxfp4"):
            here = _format(family, name)
            for field in ("layer_constant_s", "flops_efficiency"):
                constants.append(
                    Constant(f"{family[0]} {name} {field}", "linear", field, _and(here, _dense))
                )
            for field in ("bandwidth_efficiency", "flops_efficiency"):
                constants.append(
                    Constant(
                        f"{family[0]} {name} experts {field}",
                        "expert_linear",
                        field,
                        _and(here, _has_experts),
                    )
                )
    constants.append(Constant("routing spread", "gpu", "routing_spread", _has_experts))
    servers = {row.served for row in rows}
    return [each for each in constants if any(map(each.applies, servers))]


def _has_experts(server: Served) -> bool:
    return shipped(server[0], server[1], _known_version(server[3]))[1].experts is not None


def _dense(server: Served) -> bool:
    return not _has_experts(server)


def _and(*all_of: Callable[[Served], bool]) -> Callable[[Served], bool]:
    return lambda server: all(each(server) for each in all_of)


def _engine(name: str) -> Callable[[Served], bool]:
    return lambda server: server[3].engine == name


def _format(family: tuple[str, ...], name: str) -> Callable[[Served], bool]:
    return lambda server: server[0] in family and server[3].formats[0] == name


class Prediction:
    """TPOT of rows as a function of fitted constants.

    A server's rows are computed again only where one of its own constants changed.
    """

    def __init__(self, rows: Sequence[ServedRow], constants: Sequence[Constant]) -> None:
        self._groups: defaultdict[Served, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            self._groups[row.served].append(place)
        self._rows, self._constants = rows, constants
        self._of = {
            server: [i for i, each in enumerate(constants) if each.applies(server)]
            for server in self._groups
        }
        self._known: dict[tuple[Served, tuple[float, ...]], np.ndarray] = {}

    def start(self) -> np.ndarray:
        """The shipped values of the constants."""
        values = np.ones(len(self._constants))
        for server, own in self._of.items():
            gpu, _ = shipped(server[0], server[1], _known_version(server[3]))
            for i in own:
                values[i] = self._constants[i].of(gpu)
        return values

    def tpot_s(self, values: np.ndarray) -> np.ndarray:
        """float64[rows] under these values of the constants."""
        result = np.empty(len(self._rows))
        for server, places in self._groups.items():
            own = tuple(float(values[i]) for i in self._of[server])
            if (server, own) not in self._known:
                self._known[server, own] = self._compute(server, own)
            result[places] = self._known[server, own]
        return result

    def _compute(self, server: Served, own: tuple[float, ...]) -> np.ndarray:
        gpu, model = shipped(server[0], server[1], _known_version(server[3]))
        for i, value in zip(self._of[server], own, strict=True):
            gpu = self._constants[i].put(gpu, value)
        rows = [self._rows[place] for place in self._groups[server]]
        columns = ("concurrency", "prompt", "output", "equal")
        loop = Loop(*(np.array([getattr(row, name) for row in rows]) for name in columns))
        cost = CostModel.of(gpu, model, server[2])
        return loop.tpot_s(cost, gpu.engine.prefill_first)


@dataclass(frozen=True)
class Loop:
    """Closed loops without a KV limit; every field has one entry a loop."""

    concurrency: np.ndarray
    """requests in flight."""
    prompt: np.ndarray
    """tokens of a prompt."""
    output: np.ndarray
    """tokens of an output."""
    equal: np.ndarray
    """whether all requests have exactly these lengths, so that they stay in step."""

    def tpot_s(self, cost: CostModel, prefill_first: bool) -> np.ndarray:
        """Mean seconds per output token."""
        decode_s = cost.decode_s(self.concurrency, self.prompt + self.output / 2)
        if prefill_first:
            alone_s = cost.prefill_alone_s(self.prompt, token_budget=TOKEN_BUDGET) - cost.host_s
            paused = np.where(self.equal, 0.5, 1.0) * (self.concurrency - 1)
            return decode_s + paused / self.output * alone_s
        together = np.clip(SHARED_TOKENS // self.prompt, 1, self.concurrency)
        others = np.ceil(self.concurrency / together) - 1
        tokens = together * self.prompt
        added_s = cost.prefill_added_s(self.concurrency, tokens, token_budget=TOKEN_BUDGET)
        # Prompts that share an iteration do not attend to each other.
        pairs_s = cost.prefill_attention_s(tokens, 0)
        pairs_s -= together * cost.prefill_attention_s(self.prompt, 0)
        return decode_s + others / self.output * (added_s - pairs_s)


def fit(rows: Sequence[ServedRow], constants: Sequence[Constant]) -> np.ndarray:
    """Values of the constants: robust least squares of log(predicted / measured)."""
    prediction = Prediction(rows, constants)
    start, measured_s = prediction.start(), np.array([row.tpot_s for row in rows])
    pairs = list(zip(constants, start, strict=True))
    least = [LEAST_HOST_S / value if each.field == "host_s" else 0.02 for each, value in pairs]
    most = [LARGEST_SHARE / value if each.is_share else 30.0 for each, value in pairs]

    def residuals(scale: np.ndarray) -> np.ndarray:
        return np.log(prediction.tpot_s(start * scale) / measured_s)

    found = least_squares(
        residuals,
        np.clip(1.0, np.array(least) * 1.001, np.array(most) * 0.999),
        bounds=(least, most),
        loss="soft_l1",
        f_scale=0.05,
        max_nfev=30,
    )
    return start * found.x


def held_out_errors(rows: Sequence[ServedRow], judged: Sequence[ServedRow]) -> np.ndarray:
    """Relative error of each judged row's TPOT under constants fitted to ``rows`` without its
    third."""
    constants = fitted_constants(rows)
    folds = np.array([row.fold for row in judged])
    errors = np.empty(len(judged))
    for fold in range(FOLDS):
        inside = [row for row in rows if row.fold != fold]
        outside = [row for row in judged if row.fold == fold]
        # What the others do not determine keeps its shipped value.
        values = fit(inside, constants)
        predicted_s = Prediction(outside, constants).tpot_s(values)
        errors[folds == fold] = predicted_s / np.array([row.tpot_s for row in outside]) - 1
    return errors


@functools.cache
def _known_version(stack: Stack) -> Stack:
    """The stack, without a version that its engine's file has no constants of."""
    versions = load_json(f"engines/{stack.engine}.json")["versions"]
    return stack if stack.version in versions else dataclasses.replace(stack, version=None)


_DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b")


def _is(formats: tuple[str, ...], gpus: tuple[int, ...]) -> Callable[[ServedRow], bool]:
    return lambda row: row.model in _DENSE and row.stack.formats[0] in formats and row.gpus in gpus


_CHECKS: tuple[tuple[str, float, Callable[[ServedRow], bool]], ...] = (
    ("TPOT bf16 TP2 and TP4", 6.0, _is(("bf16",), (2, 4))),
    ("TPOT bf16 TP8", 10.0, _is(("bf16",), (8,))),
    ("TPOT FP8 TP1 to TP4", 6.0, _is(("fp8",), (1, 2, 4))),
    ("TPOT FP8 TP8", 10.0, _is(("fp8",), (8,))),
    ("TPOT FP4 TP1 to TP8", 10.0, _is(("fp4",), (1, 2, 4, 8))),
    ("TPOT experts", 8.0, lambda row: row.model not in _DENSE),
    ("TPOT gpt-oss-120b", 8.0, lambda row: row.model == "gpt-oss-120b"),
    ("TPOT Qwen3-235B-A22B", 8.0, lambda row: row.model == "qwen3-235b-a22b"),
    ("TPOT DeepSeek V3 and R1", 8.0, lambda row: row.model == "deepseek-v3"),
)
"""Name, bar in percent, and rows of each check."""
_ALL, _ALL_BAR = "TPOT of all rows but the impossible ones", 8.0


def served_fidelity(directory: Path) -> list[FidelityRow]:
    """TPOT of measured servers; empty where the file is absent."""
    if not (directory / FILE).is_file():
        return []
    rows, doubtful, left_out = served_rows(directory)
    everything = [*rows, *doubtful]
    held_out = held_out_errors(rows, everything)
    prediction = Prediction(everything, fitted_constants(rows))
    measured_s = np.array([row.tpot_s for row in everything])
    as_shipped = prediction.tpot_s(prediction.start()) / measured_s - 1
    kept = np.array([row not in doubtful for row in everything])
    result = []
    for name, bar, chosen in _CHECKS:
        group = np.array([chosen(row) for row in everything])
        mask = group & kept
        if mask.any():
            why = Counter(doubtful[row] for row in doubtful if chosen(row))
            detail = f"; {_counts(why)} left out" if why else ""
            detail += f", with them {_mean(held_out[group]):.1f} %" if why else ""
            result.append(_judged(name, bar, everything, held_out, as_shipped, mask, detail))
    detail = f"; of the file's rows left out: {_counts(left_out, DOUBTS)}" if left_out else ""
    result.append(_judged(_ALL, _ALL_BAR, everything, held_out, as_shipped, kept | True, detail))
    return result


def _judged(
    name: str,
    bar: float,
    rows: Sequence[ServedRow],
    held_out: np.ndarray,
    as_shipped: np.ndarray,
    mask: np.ndarray,
    detail: str,
) -> FidelityRow:
    errors, runs = held_out[mask], {row.run for row, each in zip(rows, mask, strict=True) if each}
    about = (
        f"{mask.sum()} rows of {len(runs)} runs, held out by thirds; median "
        f"{100 * np.median(np.abs(errors)):.1f} %, bias {100 * errors.mean():+.1f} %; shipped "
        f"constants {_mean(as_shipped[mask]):.1f} %"
    )
    return FidelityRow.within(
        f"cost model vs servers: {name}", _mean(errors), bar, "% (mean)", about + detail
    )


def _mean(errors: np.ndarray) -> float:
    return 100 * float(np.abs(errors).mean())


def _counts(why: Counter[str], without: tuple[str, ...] = ()) -> str:
    return ", ".join(f"{n} {rule}" for rule, n in sorted(why.items()) if rule not in without)
