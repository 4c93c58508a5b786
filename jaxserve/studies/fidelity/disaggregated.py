"""The cost model against measured servers whose prompts and decoding have GPUs of their own.

A closed loop keeps C requests in flight. N of them decode on D engines, the others are prefilled by
P engines, wait for that, or are handed over:

    X    = N / (output TPOT(N / D)) <= P b / t(prefill of b prompts)      throughput
    C    = N + X TTFT                                                    Little's law
    TTFT = hand-off + KV bytes / rate + t(prefill of a prompt) + wait(X)

No prompt shares an iteration with decoding, so TPOT is that of decoding alone. N is the largest
number that both allow: where prefill or the decoding engines' limits bound the throughput, the rest
waits. Below that the wait is that of a queue with P servers and constant service (Sakasegawa, An
approximation formula Lq = a b^c / (1 - b), 1977). The measuring client sends C requests at once
and then nine times as many one by one, so a tenth of the requests find the queue of a burst.

Four numbers are fitted to two thirds of the rows and judged on the third, see ``Apart``: those of
the decoding engines first, at the N that Little's law gives of the measured times, then those of
the prefill, which N follows from. Engines of one release, model, format and way to attend have
numbers of their own, drawn to those of their engine in general. All else is what the shipped
constants say, which no row of this kind was fitted to.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_bytes_per_token
from jaxserve.sim.machine.moe_terms import by_tier
from jaxserve.studies.fidelity.disaggregated_rows import (
    DisaggregatedRow,
    RoleWorkers,
    disaggregated_rows,
)
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.served_fit import OF_VERSION, WEAK, kv_pool_tokens
from jaxserve.studies.fidelity.served_loop import TOKEN_BUDGET, shipped_accepted
from jaxserve.studies.fidelity.served_rows import FILE, FOLDS

NETWORK_BYTES_PER_S = 50e9
"""Rate at which a GPU sends KV to another node: one 400 Gb/s adapter for each, as in HGX boards."""
BURST_SHARE = 0.1
"""Share of the requests that a run sends at once: ``num_prompts`` is ten times the concurrency in
the benchmark of NVIDIA/srt-slurm (bench.sh)."""
TPOT_BAR, TTFT_BAR = 12.0, 30.0
_BISECTIONS = 40
_NUMBERS = 49
"""Numbers of decoding requests between which TPOT is interpolated."""
_NOISE = 0.1  # relative error of a row from which on it counts less than squared
_STEP = 1e-3  # relative step of derivatives; interpolated times have kinks in smaller ones

Array = NDArray[np.float64]
Kind = tuple[str | bool, ...]


class Apart(NamedTuple):
    """Times of an engine beyond its shipped constants where prompts have GPUs of their own."""

    handoff_s: float = 0.2
    """seconds between the engines of a request: router, transfer set-up, front end."""
    prefill: float = 1.0
    """factor on the time of a prefill: experts that tokens choose more often hold up the others,
    and prompts do not fill every batch."""
    launches: float = 1.0
    """factor on what the engine adds to the kernels of a decode step, which is one recorded graph
    here and shares its host with prompts elsewhere."""
    experts: float = 1.0
    """factor on the arithmetic of experts in a decode step, whose shipped constants are of engines
    that mix prompts in."""


class LoopTimes(NamedTuple):
    """Mean times of a loop, s."""

    ttft_s: float
    """time to first token."""
    tpot_s: float
    """time per output token."""


class DisaggregatedLoops:
    """The closed loops of n rows, without their measured times."""

    def __init__(self, rows: Sequence[DisaggregatedRow]) -> None:
        """Computes what does not depend on ``Apart``."""
        self.rows = tuple(rows)
        """the rows."""
        self._decode = [_DecodeSteps(row) for row in rows]
        prefills = np.array([_prefill_times(row) for row in rows]).reshape(-1, 3)
        self.prefill_per_s, self.own_s, self.transfer_s = prefills.T
        """float64[n] each: prompts that all prefill engines do in a second, seconds in which one
        does a single prompt, and those in which its KV travels."""
        self._most = np.array([steps.most for steps in self._decode])
        self._servers = np.array([row.prefill.count for row in rows], np.float64)
        self._concurrency = np.array([row.concurrency for row in rows], np.float64)
        self._output = np.array([row.mean_output for row in rows])

    def tpot_s(self, decoding: Array, launches: Array, experts: Array) -> Array:
        """Seconds per output token, float64[n, ...], where ``decoding``, float64[n, ...], requests
        decode."""
        each = zip(self._decode, decoding, launches, experts, strict=True)
        return np.array([steps.tpot_s(*numbers) for steps, *numbers in each])

    def numbers(self) -> Array:
        """float64[n, G], numbers of decoding requests up to the most, evenly in their logarithm."""
        return self._most[:, None] ** np.linspace(0.0, 1.0, _NUMBERS)

    def times(self, handoff_s: Array, prefill: Array, tpot_s: Array) -> tuple[Array, Array]:
        """Mean TTFT and TPOT, float64[n] each.

        Args:
          handoff_s, prefill: float64[n], see ``Apart``.
          tpot_s: float64[n, G], TPOT at ``numbers``.
        """
        most_per_s = self.prefill_per_s / prefill
        base_s = handoff_s + self.transfer_s + prefill * self.own_s
        low, high = np.zeros(len(self.rows)), self._most
        for _ in range(_BISECTIONS):
            decoding = (low + high) / 2
            rate = decoding / (self._output * self._interpolated(decoding, tpot_s))
            waiting = rate * (base_s + _wait_s(rate, most_per_s, self._servers))
            more = (rate < most_per_s) & (decoding + waiting < self._concurrency)
            low, high = np.where(more, decoding, low), np.where(more, high, decoding)
        found_s = self._interpolated(low, tpot_s)
        steady_s = np.maximum((self._concurrency - low) * self._output * found_s / low, base_s)
        burst_s = base_s + self._concurrency / (2 * most_per_s)
        return steady_s + BURST_SHARE * (burst_s - steady_s), found_s

    def _interpolated(self, decoding: Array, tpot_s: Array) -> Array:
        scale = (_NUMBERS - 1) / np.maximum(np.log(self._most), 1e-9)
        place = np.clip(np.log(np.maximum(decoding, 1.0)) * scale, 0.0, _NUMBERS - 1)
        below = np.minimum(place.astype(np.int64), _NUMBERS - 2)
        row = np.arange(len(place))
        share = place - below
        return (1.0 - share) * tpot_s[row, below] + share * tpot_s[row, below + 1]


class _DecodeSteps:
    """Decode steps of a row."""

    def __init__(self, row: DisaggregatedRow) -> None:
        gpu, model = row.served(row.decode)
        self._row, self._cost = row, CostModel.of(gpu, model, row.decode.gpus)
        context = row.mean_prompt + row.mean_output / 2
        self._context = context
        pool = kv_pool_tokens(gpu, model, row.decode.gpus) / context
        limit = row.decode.count * min(row.decode.most, max(pool, 1.0))
        self.most = float(min(row.concurrency, limit))
        """largest number of requests that decode."""
        self._tokens = float(shipped_accepted().tokens_per_step(row.output, row.drafts))

    def tpot_s(self, decoding: Array, launches: float, experts: float) -> Array:
        """Seconds per output token where so many requests decode."""
        row, cost, beyond = self._row, self._cost, self._cost.beyond
        launched_s = cost.host_s
        if beyond is not None:
            launched_s += beyond.expert_constant_s
            arithmetic_s = by_tier(experts * each_s for each_s in beyond.expert_s_per_token)
            beyond = dataclasses.replace(beyond, expert_s_per_token=arithmetic_s)
            cost = dataclasses.replace(cost, beyond=beyond)
        each = np.maximum(decoding / row.decode.count, 1.0)
        step_s = cost.decode_s(each, self._context, row.drafts) + (launches - 1) * launched_s
        return step_s / self._tokens


def _prefill_times(row: DisaggregatedRow) -> tuple[float, float, float]:
    """See ``DisaggregatedLoops``."""
    prompt = row.mean_prompt
    gpu, model = row.served(row.prefill)
    cost = CostModel.of(gpu, model, row.prefill.gpus)
    together = row.prefill.ranks * max(1.0, TOKEN_BUDGET // prompt)
    full_s = _prefill_s(cost, row.prefill, prompt, together)
    near = row.prefill.count * row.prefill.gpus + row.decode.count * row.decode.gpus
    rate = gpu.link_bytes_per_s if near <= gpu.link_gpus else NETWORK_BYTES_PER_S
    senders = row.prefill.gpus // row.prefill.ranks
    bytes_per_gpu = prompt * kv_bytes_per_token(model, row.drafts > 0, senders)
    # GPUs that all hold the same compressed vectors send a share each.
    copies = senders if model.latent is not None else 1
    own_s = _prefill_s(cost, row.prefill, prompt, 1.0)
    return row.prefill.count * together / full_s, own_s, bytes_per_gpu / copies / rate


def _wait_s(rate: Array, most_per_s: Array, servers: Array) -> Array:
    load = np.minimum(rate / most_per_s, 1 - 1e-9)
    crowd = load ** (np.sqrt(2 * (servers + 1)) - 1)
    return crowd / (2 * most_per_s * (1 - load))


def _prefill_s(cost: CostModel, workers: RoleWorkers, prompt: float, prompts: float) -> float:
    """Seconds of an iteration that prefills ``prompts`` whole prompts. Where each GPU attends for
    prompts of its own, the fullest ends what is outside of the experts."""
    full = math.ceil(prompts / workers.ranks) * workers.ranks
    beyond, tokens = cost.beyond, full * prompt
    body_s = cost.linear_s(tokens)
    if beyond is not None:
        body_s = body_s - beyond.linear_s(tokens, 0) + beyond.linear_s(prompts * prompt, 0)
    attention_s = full * cost.prefill_attention_s(prompt, 0)
    fixed_s = cost.host_s + cost.layers * cost.prefill_constant_s
    total_s = float(fixed_s + body_s + cost.head_s(prompts) + attention_s)
    return max(total_s, beyond.eager_s) if beyond is not None else total_s


def decoding_requests(rows: Sequence[DisaggregatedRow]) -> Array:
    """float64[n], requests that decode by the measured times: C tokens TPOT / (TTFT + tokens
    TPOT)."""
    decoding_s = np.array([row.mean_output * row.tpot_s for row in rows])
    waiting_s = np.array([row.ttft_s for row in rows])
    return np.array([row.concurrency for row in rows]) * decoding_s / (waiting_s + decoding_s)


class _OfKinds:
    """Numbers of an engine and of the kinds of its servers."""

    def __init__(
        self, kinds: Sequence[Kind], centres: Sequence[float], errors: Callable[..., Array]
    ) -> None:
        """Fits the numbers by robust least squares.

        Args:
          kinds: kind of each measured row; without any, the numbers are the centres.
          centres: values that the engine's numbers are drawn to; those of a kind are drawn to them.
          errors: logarithms of predicted by measured times, of float64[rows] for each number.
        """
        self._places = {kind: 1 + place for place, kind in enumerate(dict.fromkeys(kinds))}
        self._logs = np.zeros((1 + len(self._places), len(centres)))
        self._logs[0] = np.log(centres)
        if not kinds:
            return
        start = self._logs

        def residuals(flat: Array) -> Array:
            logs = flat.reshape(start.shape)
            priors = WEAK * (logs[0] - start[0]), OF_VERSION * logs[1:].ravel()
            return np.concatenate([errors(*self._of(logs, kinds)), *priors])

        found = least_squares(
            residuals, start.ravel(), loss="soft_l1", f_scale=_NOISE, max_nfev=30, diff_step=_STEP
        )
        self._logs = found.x.reshape(start.shape)

    def of(self, kinds: Sequence[Kind]) -> Array:
        """float64[numbers, rows] of rows of these kinds; an unknown kind has the engine's."""
        return self._of(self._logs, kinds)

    def _of(self, logs: Array, kinds: Sequence[Kind]) -> Array:
        """Numbers by their logarithms: the engine's, then how much larger those of a kind are."""
        own = np.vstack([np.zeros_like(logs[:1]), logs[1:]])
        return np.exp(logs[0] + own[[self._places.get(kind, 0) for kind in kinds]]).T


class FittedApart:
    """The numbers of an engine, fitted to the measured times of its rows."""

    def __init__(self, loops: DisaggregatedLoops) -> None:
        """Fits the numbers of decoding first, then those of prefill."""
        rows = loops.rows
        ttft_s, tpot_s = np.array([(row.ttft_s, row.tpot_s) for row in rows]).reshape(-1, 2).T
        decoding = decoding_requests(rows)

        def decoded(launches: Array, experts: Array) -> Array:
            return np.log(loops.tpot_s(decoding, launches, experts) / tpot_s)

        self._decode = _OfKinds(_kinds_of(rows, "decode"), Apart()[2:], decoded)
        table = self._table(loops)

        def served(handoff_s: Array, prefill: Array) -> Array:
            found = loops.times(handoff_s, prefill, table)
            return np.log(np.concatenate(found) / np.concatenate((ttft_s, tpot_s)))

        self._prefill = _OfKinds(_kinds_of(rows, "prefill"), Apart()[:2], served)

    def of(self, row: DisaggregatedRow) -> Apart:
        """The numbers of a row."""
        prefill = self._prefill.of(_kinds_of([row], "prefill")).ravel().tolist()
        return Apart(*prefill, *self._decode.of(_kinds_of([row], "decode")).ravel().tolist())

    def times(self, loops: DisaggregatedLoops) -> list[LoopTimes]:
        """Times of loops with these numbers."""
        handoff_s, prefill = self._prefill.of(_kinds_of(loops.rows, "prefill"))
        ttft_s, tpot_s = loops.times(handoff_s, prefill, self._table(loops))
        return [LoopTimes(*each) for each in zip(ttft_s.tolist(), tpot_s.tolist(), strict=True)]

    def _table(self, loops: DisaggregatedLoops) -> Array:
        """float64[n, G], TPOT at ``loops.numbers``."""
        launches, experts = self._decode.of(_kinds_of(loops.rows, "decode"))
        return loops.tpot_s(loops.numbers(), launches, experts)


def _kinds_of(rows: Sequence[DisaggregatedRow], role: str) -> list[Kind]:
    """Kind of the engines of a role, ``prefill`` or ``decode``, of each row."""
    return [row.kind(getattr(row, role)) for row in rows]


def held_out_times(rows: Sequence[DisaggregatedRow]) -> list[LoopTimes]:
    """Times of each row under the numbers of its engine, fitted without its third."""
    parts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        parts[row.stack.engine, row.fold].append(place)
    found: dict[int, LoopTimes] = {}
    for (engine, fold), places in parts.items():
        others = [i for part in range(FOLDS) if part != fold for i in parts.get((engine, part), ())]
        apart = FittedApart(DisaggregatedLoops([rows[i] for i in others]))
        times = apart.times(DisaggregatedLoops([rows[i] for i in places]))
        found |= dict(zip(places, times, strict=True))
    return [found[i] for i in range(len(rows))]


def disaggregated_fidelity(directory: Path) -> list[FidelityRow]:
    """Rows on TPOT and TTFT of these servers; none if the file is absent."""
    if not (directory / FILE).is_file():
        return []
    rows, left_out = disaggregated_rows(directory)
    if not rows:
        return []
    times = held_out_times(rows)
    tpot = np.array([t.tpot_s / row.tpot_s - 1 for t, row in zip(times, rows, strict=True)])
    ttft = np.array([t.ttft_s / row.ttft_s - 1 for t, row in zip(times, rows, strict=True)])
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[f"{row.stack.engine} {'with' if row.drafts else 'without'} drafts"].append(place)
    split = ", ".join(
        f"{name} {len(own)} rows, TPOT {100 * np.abs(tpot[own]).mean():.1f} %, TTFT "
        f"{100 * np.median(np.abs(ttft[own])):.1f} %"
        for name, own in sorted(groups.items())
    )
    about = f"{len(rows)} rows, held out by thirds; {split}"
    counts = ", ".join(f"{n} {rule}" for rule, n in sorted(left_out.items()))
    return [
        FidelityRow.within(
            "cost model vs servers apart: TPOT",
            100 * float(np.abs(tpot).mean()),
            TPOT_BAR,
            "% (mean)",
            f"{about}; median {100 * np.median(np.abs(tpot)):.1f} %, bias "
            f"{100 * tpot.mean():+.1f} %; of the file's rows left out: {counts}",
        ),
        FidelityRow.within(
            "cost model vs servers apart: TTFT",
            100 * float(np.median(np.abs(ttft))),
            TTFT_BAR,
            "% (median)",
            f"the same rows; mean {100 * np.abs(ttft).mean():.1f} %, bias of the median "
            f"{100 * np.median(ttft):+.1f} %",
        ),
    ]
