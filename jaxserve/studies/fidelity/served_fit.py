"""Constants that no kernel shows, fitted to TPOT of measured servers.

Every constant is a product: the value that all servers of an engine share, times what its version
has of its own. Both have a prior in the fit, as residuals beside those of the rows: a version is
drawn to its engine, and what all share is drawn weakly to a centre that nothing was fitted to. So
no constant needs a bound, one that few rows show stays near its centre, and a version that was
never measured has its engine's value. How strongly versions are drawn to their engine was chosen by
the error of runs that are held out whole.

``python -m jaxserve.studies.fidelity.served_fit DIRECTORY`` prints what the files in ``data`` ship.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from scipy.optimize import OptimizeResult, least_squares, minimize_scalar

from jaxserve.datafiles import load_json
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_bytes_per_token, weights_bytes
from jaxserve.sim.machine.stack import ServedGpu, Stack, load_engine
from jaxserve.studies.fidelity.served_loop import Accepted, Loop, shipped_accepted
from jaxserve.studies.fidelity.served_recipes import HOPPER
from jaxserve.studies.fidelity.served_rows import FOLDS, ServedRow, served_rows, shipped

BLACKWELL = ("b200-sxm-180gb", "gb200-nvl72-186gb")
LARGEST_SHARE = 0.97
"""Most that a fitted share of a peak can be."""
WEAK = 0.02
"""Residual of a constant that is e times its centre."""
OF_VERSION = 0.3
"""Residual of a version's constant that is e times its engine's."""
KV_SHARE = 0.8
"""Share of the memory beside the weights that is the KV pool: 0.75 to 0.9 in the recipes."""
RUN_FOLDS = 5
"""Parts that whole runs are divided into."""
_ENGINE_CENTRES = {"host_s": 1e-3, "row_s": 5e-6, "expert_layer_s": 4e-5}
_EAGER_CENTRE_S = 5e-4
_NOISE = 0.05  # relative error of a row from which on it counts less than squared
_SPREADS = (0.5, 1.0)

Served = tuple[str, str, int, Stack]


@dataclass(frozen=True)
class Constant:
    """A constant that is fitted, and the servers that have it."""

    name: str
    """what it is called in messages."""
    group: str
    """``engine``, ``linear`` or ``expert_linear`` of ``ServedGpu``, or ``accepted``."""
    field: str
    """name of the field there."""
    applies: Callable[[Served], bool]
    """whether it is one of this server's."""
    centre: float
    """value that it is drawn to, unless it has a parent."""
    parent: str | None = None
    """name of the constant that it is drawn to."""

    @property
    def is_share(self) -> bool:
        """Whether it is a share of what could be."""
        return self.field.endswith("efficiency") or self.group == "accepted"

    def of(self, gpu: ServedGpu) -> float:
        """Its shipped value."""
        if self.group == "accepted":
            return getattr(shipped_accepted(), self.field)
        group = getattr(gpu, self.group)
        return getattr(group if self.group == "engine" else group[0], self.field)

    def put(self, gpu: ServedGpu, value: float) -> ServedGpu:
        """``gpu`` with this value."""
        if self.group == "engine":
            engine = dataclasses.replace(gpu.engine, **{self.field: value})
            return dataclasses.replace(gpu, engine=engine, host_s=engine.host_s)
        fits = getattr(gpu, self.group)
        changed = tuple(dataclasses.replace(fit, **{self.field: value}) for fit in fits)
        return dataclasses.replace(gpu, **{self.group: changed})


def fitted_constants(rows: Sequence[ServedRow]) -> list[Constant]:
    """The constants of the servers of these rows."""
    constants = []
    versions = sorted({(row.stack.engine, row.stack.version or "") for row in rows})
    for engine in sorted({engine for engine, _ in versions}):
        for field, centre in _ENGINE_CENTRES.items():
            here = _engine(engine)
            if field == "expert_layer_s":
                here = _and(here, _has_experts)
            name = f"{field} {engine}"
            constants.append(Constant(name, "engine", field, here, centre))
            for each, version in versions:
                if each == engine and version and field != "row_s":
                    own = _and(here, _version(version))
                    named = f"{name} {version}"
                    constants.append(Constant(named, "engine", field, own, centre, parent=name))
        if not load_engine(engine).prefill_first:
            for field, kind in (("eager_layer_s", _dense), ("eager_expert_layer_s", _has_experts)):
                here = _and(_engine(engine), kind)
                constants.append(
                    Constant(f"{field} {engine}", "engine", field, here, _EAGER_CENTRE_S)
                )
    for family in (HOPPER, BLACKWELL):
        for name in ("fp8", "fp4", "mxfp4"):
            for group, kind, fields in (
                ("linear", _dense, {"layer_constant_s": 2e-5, "flops_efficiency": 0.55}),
                (
                    "expert_linear",
                    _has_experts,
                    {"bandwidth_efficiency": 0.8, "flops_efficiency": 0.3},
                ),
            ):
                here = _and(_format(family, name), kind)
                constants += [
                    Constant(f"{family[0]} {name} {group} {field}", group, field, here, centre)
                    for field, centre in fields.items()
                ]
    constants += [
        Constant(f"accepted {field.name}", "accepted", field.name, _drafts, 0.6)
        for field in dataclasses.fields(Accepted)
    ]
    servers = {row.served for row in rows}
    return [each for each in constants if any(map(each.applies, servers))]


def _has_experts(server: Served) -> bool:
    return shipped(server[0], server[1], known_version(server[3]))[1].experts is not None


def _dense(server: Served) -> bool:
    return not _has_experts(server)


def _drafts(server: Served) -> bool:
    return server[1] == "deepseek-v3"


def _and(*all_of: Callable[[Served], bool]) -> Callable[[Served], bool]:
    return lambda server: all(each(server) for each in all_of)


def _engine(name: str) -> Callable[[Served], bool]:
    return lambda server: server[3].engine == name


def _version(name: str) -> Callable[[Served], bool]:
    return lambda server: server[3].version == name


def _format(family: tuple[str, ...], name: str) -> Callable[[Served], bool]:
    return lambda server: server[0] in family and server[3].formats[0] == name


class Prediction:
    """TPOT of rows as a function of fitted constants.

    A server's rows are computed again only where one of its own constants changed.
    """

    def __init__(
        self,
        rows: Sequence[ServedRow],
        constants: Sequence[Constant],
        routing_spread: float | None = None,
    ) -> None:
        """Args: ``routing_spread`` of all GPUs; None for that of their files."""
        self._spread = routing_spread
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
        """The shipped values of the constants; an engine's own are those of no version, and what
        no row has is at its centre."""
        values = np.array([each.centre for each in self._constants])
        for server, own in self._of.items():
            for i in own:
                stack = known_version(server[3])
                if self._constants[i].group == "engine" and self._constants[i].parent is None:
                    stack = dataclasses.replace(stack, version=None)
                values[i] = self._constants[i].of(shipped(server[0], server[1], stack)[0])
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
        gpu, model = shipped(server[0], server[1], known_version(server[3]))
        if self._spread is not None:
            gpu = dataclasses.replace(gpu, routing_spread=self._spread)
        accepted = shipped_accepted()
        # A version's own constant comes after that of its engine, and replaces it.
        for i, value in zip(self._of[server], own, strict=True):
            constant = self._constants[i]
            if constant.group == "accepted":
                accepted = dataclasses.replace(accepted, **{constant.field: value})
            else:
                gpu = constant.put(gpu, value)
        return self._loop(server).tpot_s(
            CostModel.of(gpu, model, server[2]),
            prefill_first=gpu.engine.prefill_first,
            kv_tokens=_kv_tokens(gpu, model, server[2]),
            reserves=gpu.engine.name == "trtllm",
            accepted=accepted,
        )

    def _loop(self, server: Served) -> Loop:
        rows = [self._rows[place] for place in self._groups[server]]
        names = [field.name for field in dataclasses.fields(Loop)]
        return Loop(*(np.array([getattr(row, name) for row in rows]) for name in names))

    def through_table_s(self) -> np.ndarray:
        """float64[rows] under the shipped constants, by the closed loop that fills latency
        tables."""
        result = np.empty(len(self._rows))
        for server, places in self._groups.items():
            gpu, model = shipped(server[0], server[1], known_version(server[3]))
            cost = CostModel.of(gpu, model, server[2])
            kv_tokens = _kv_tokens(gpu, model, server[2])
            result[places] = self._loop(server).through_table_s(cost, kv_tokens)
        return result


def _kv_tokens(gpu: ServedGpu, model: LargeModel, gpus: int) -> float:
    """Tokens that the KV pool of a measured server holds."""
    left = gpu.memory_bytes - weights_bytes(model, 0, gpus)
    return KV_SHARE * left / kv_bytes_per_token(model, False, gpus)


def fit(
    rows: Sequence[ServedRow], constants: Sequence[Constant], of_version: float = OF_VERSION
) -> np.ndarray:
    """Values of the constants: robust least squares of log(predicted / measured), with priors."""
    prediction = Prediction(rows, constants)
    start, measured_s = prediction.start(), np.array([row.tpot_s for row in rows])
    place = {each.name: i for i, each in enumerate(constants)}
    parents = np.array([place[each.parent] if each.parent else -1 for each in constants])
    centres = np.array([each.centre for each in constants])
    most = np.array([LARGEST_SHARE if each.is_share else np.inf for each in constants])
    weights = np.where(parents < 0, WEAK, of_version)

    def values(logs: np.ndarray) -> np.ndarray:
        whole = logs + np.where(parents < 0, 0.0, logs[parents])
        return np.minimum(centres * np.exp(whole), most)

    def residuals(logs: np.ndarray) -> np.ndarray:
        rows_off = np.log(prediction.tpot_s(values(logs)) / measured_s)
        return np.concatenate([rows_off, weights * logs])

    whole = np.log(start / centres)
    logs = whole - np.where(parents < 0, 0.0, whole[parents])
    servers = {row.served for row in rows}
    logs = np.where([any(map(each.applies, servers)) for each in constants], logs, 0.0)
    found = least_squares(residuals, logs, loss="soft_l1", f_scale=_NOISE, max_nfev=25)
    return values(found.x)


def routing_spread(rows: Sequence[ServedRow]) -> float:
    """``ServedGpu.routing_spread`` that fits rows of models with experts best, all else as shipped.

    It is no ``Constant``: rows hardly tell it from the efficiencies of experts.
    """
    rows = [row for row in rows if _has_experts(row.served)]
    measured_s = np.array([row.tpot_s for row in rows])

    def loss(spread: float) -> float:
        prediction = Prediction(rows, (), spread)
        off = np.log(prediction.tpot_s(np.empty(0)) / measured_s) / _NOISE
        return float(np.sqrt(1 + off**2).sum())

    found = minimize_scalar(loss, bounds=_SPREADS, method="bounded")
    return float(cast(OptimizeResult, found).x)


def by_third(row: ServedRow) -> int:
    """Third that a row is held out with."""
    return row.fold


def by_run(row: ServedRow) -> int:
    """Part that a row is held out with, the same for all rows of its run."""
    return int(hashlib.sha256(repr(row.run).encode()).hexdigest(), 16) % RUN_FOLDS


def held_out_errors(
    rows: Sequence[ServedRow],
    judged: Sequence[ServedRow],
    part: Callable[[ServedRow], int] = by_third,
    of_version: float = OF_VERSION,
) -> np.ndarray:
    """Relative error of each judged row's TPOT under constants fitted to ``rows`` without its part.

    A version that only the part has is one that was never measured: the priors alone say its
    constants.
    """
    constants = fitted_constants(rows)
    parts = np.array([part(row) for row in judged])
    errors = np.empty(len(judged))
    for each in range(FOLDS if part is by_third else RUN_FOLDS):
        inside = [row for row in rows if part(row) != each]
        outside = [row for row in judged if part(row) == each]
        if outside:
            values = fit(inside, constants, of_version)
            predicted_s = Prediction(outside, constants).tpot_s(values)
            errors[parts == each] = predicted_s / np.array([r.tpot_s for r in outside]) - 1
    return errors


@functools.cache
def known_version(stack: Stack) -> Stack:
    """The stack, without a version that its engine's file has no constants of."""
    versions = load_json(f"engines/{stack.engine}.json")["versions"]
    return stack if stack.version in versions else dataclasses.replace(stack, version=None)


def main() -> None:
    """Prints the constants, fitted to all rows, that the files ship, and the spread of routing by
    itself, of all rows and without each third."""
    rows, _, _ = served_rows(Path(sys.argv[1]))
    constants = fitted_constants(rows)
    found = fit(rows, constants)
    named = {each.name: float(f"{x:.3g}") for each, x in zip(constants, found, strict=True)}
    named["routing_spread"] = round(routing_spread(rows), 3)
    for third in range(FOLDS):
        spread = routing_spread([row for row in rows if row.fold != third])
        named[f"routing_spread without third {third}"] = round(spread, 3)
    print(json.dumps(named, indent=2))


if __name__ == "__main__":
    main()
