"""Constants that no kernel shows, fitted to TPOT of measured servers.

Every constant is the value of its engine times a factor of the engine's version. Priors enter the
fit as residuals beside those of the rows: a version is drawn to its engine, and the engine's value
is drawn weakly to a centre in ``data/served/constants.json``. Therefore no constant needs a bound,
a constant that few rows show stays near its centre, and a version without measurements has its
engine's value. The error of whole held-out runs chose the strength of the versions' prior.

``python -m jaxserve.studies.fidelity.served_fit DIRECTORY`` prints the constants that the files in
``data`` ship.
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
from typing import Any, cast

import numpy as np
from scipy.optimize import OptimizeResult, least_squares, minimize_scalar

from jaxserve.datafiles import load_json
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_bytes_per_token, weights_bytes
from jaxserve.sim.machine.stack import ServedGpu, Stack, load_engine
from jaxserve.studies.fidelity.served_loop import Accepted, Loop, shipped_accepted
from jaxserve.studies.fidelity.served_recipes import gpu_families
from jaxserve.studies.fidelity.served_rows import FOLDS, ServedRow, served_rows, shipped
from jaxserve.studies.fidelity.vllm_expert_run import fitted_host_s
from jaxserve.studies.fidelity.vllm_run import VERSION

LARGEST_SHARE = 0.97
"""Largest value of a fitted share of a peak."""
WEAK = 0.02
"""Residual of a constant at e times its centre."""
OF_VERSION = 0.3
"""Residual of a version's constant at e times its engine's, and of a product's at e times its
measured kernels'."""
KV_SHARE = 0.8
"""KV pool as a share of the memory beside the weights: 0.75 to 0.9 in the recipes."""
RUN_FOLDS = 5
"""Number of parts that whole runs are divided into."""
_NOISE = 0.05  # relative error of a row from which on it counts less than squared
_SPREADS = (0.5, 1.0)
_EXPERTS = {"all": None, "dense": False, "experts": True}

Served = tuple[str, str, int, Stack]


@dataclass(frozen=True)
class Constant:
    """A fitted constant, and the servers that have it; None admits every value."""

    name: str
    """name in messages and on the page."""
    group: str
    """``engine``, ``linear`` or ``expert_linear`` of ``ServedGpu``, or ``accepted``."""
    field: str
    """name of the field in its group."""
    centre: float
    """value that the prior draws to, unless the constant has a parent."""
    parent: str | None = None
    """name of the constant that the prior draws to."""
    engine: str | None = None
    """engine of its servers."""
    version: str | None = None
    """version of their engine."""
    without: tuple[str, ...] = ()
    """versions of their engine that have 0 in its place, which is not fitted."""
    gpus: tuple[str, ...] | None = None
    """names of their GPUs."""
    weights: str | None = None
    """number format of their weights."""
    model: str | None = None
    """their model."""
    experts: bool | None = None
    """whether their model has experts."""
    of_kernels: bool = False
    """whether the centre is what measured kernels reach."""

    def applies(self, server: Served) -> bool:
        """Whether a server has the constant."""
        gpu, model, _, stack = server
        return (
            self.engine in (None, stack.engine)
            and self.version in (None, stack.version)
            and stack.version not in self.without
            and self.weights in (None, stack.formats[0])
            and self.model in (None, model)
            and (self.gpus is None or gpu in self.gpus)
            and self.experts in (None, _has_experts(server))
        )

    @property
    def is_share(self) -> bool:
        """Whether the constant is a share of a maximum."""
        return self.field.endswith("efficiency") or self.group == "accepted"

    def of(self, gpu: ServedGpu) -> float:
        """The shipped value."""
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
    """The constants in ``data/served/constants.json`` that servers of these rows have."""
    listed, servers = load_json("served/constants.json"), {row.served for row in rows}
    versions: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        versions[row.stack.engine].add(row.stack.version or "")
    constants = [
        constant
        for engine in sorted(versions)
        for item in listed["engine"]
        for constant in _engine_constants(item, engine, sorted(versions[engine] - {""}))
    ]
    constants += [
        _product_constant(listed, item, engine, family, weights)
        for engine in sorted(versions)
        for family in gpu_families()
        for weights in listed["formats"]
        for item in listed["products"]
    ]
    drafts = listed["drafts"]
    constants += [
        Constant(
            f"accepted {field.name}",
            "accepted",
            field.name,
            drafts["centre"],
            model=drafts["model"],
        )
        for field in dataclasses.fields(Accepted)
    ]
    return [each for each in constants if any(map(each.applies, servers))]


def _product_constant(
    listed: dict[str, Any], item: dict[str, Any], engine: str, family: str, weights: str
) -> Constant:
    """A constant of an engine's products in a format on a family of GPUs."""
    kernels = listed["kernels"][engine][family][item["group"]].get(weights, {})
    return Constant(
        name=f"{engine} {family} {weights} {item['group']} {item['field']}",
        group=item["group"],
        field=item["field"],
        centre=kernels.get(item["field"], item["centre"]),
        engine=engine,
        gpus=gpu_families()[family],
        weights=weights,
        experts=_EXPERTS[item["servers"]],
        of_kernels=item["field"] in kernels,
    )


def _engine_constants(item: dict[str, Any], engine: str, versions: list[str]) -> list[Constant]:
    """An engine's constant, followed by those of its versions."""
    if item.get("mixes_prompts") and load_engine(engine).prefill_first:
        return []
    shared = Constant(
        name=f"{item['field']} {engine}",
        group="engine",
        field=item["field"],
        centre=item["centre"],
        engine=engine,
        model=item.get("model"),
        experts=_EXPERTS[item["servers"]],
        without=tuple(v for v in versions if not _shipped_time(engine, v, item["field"])),
    )
    own = [
        dataclasses.replace(
            shared, name=f"{shared.name} {version}", version=version, parent=shared.name
        )
        for version in versions
        if item.get("versions") and version not in shared.without
    ]
    return [shared, *own]


def _shipped_time(engine: str, version: str, field: str) -> float:
    known = known_version(Stack(engine=engine, version=version)).version
    return getattr(load_engine(engine, known), field)


def _has_experts(server: Served) -> bool:
    return shipped(server[0], server[1], known_version(server[3]))[1].experts is not None


class Prediction:
    """TPOT of rows as a function of fitted constants.

    Rows of a server are computed again only if one of its constants changed.
    """

    def __init__(
        self,
        rows: Sequence[ServedRow],
        constants: Sequence[Constant],
        routing_spread: float | None = None,
    ) -> None:
        """Predicts these rows.

        Args:
          rows: measured loops.
          constants: fitted constants.
          routing_spread: spread of routing of all GPUs; None for the value in their files.
        """
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
        """The shipped values of the constants, float64[constants].

        An engine's constant has the value of one of its versions, of those that have it; a constant
        that no row has is at its centre.
        """
        values = np.array([each.centre for each in self._constants])
        for server, own in self._of.items():
            for i in own:
                gpu, _ = shipped(server[0], server[1], known_version(server[3]))
                values[i] = self._constants[i].of(gpu) or values[i]
        return values

    def tpot_s(self, values: np.ndarray) -> np.ndarray:
        """Predicted TPOT, float64[rows], under these values of the constants."""
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
        # The constant of a version follows that of its engine and replaces it.
        for i, value in zip(self._of[server], own, strict=True):
            constant = self._constants[i]
            if constant.group == "accepted":
                accepted = dataclasses.replace(accepted, **{constant.field: value})
            else:
                gpu = constant.put(gpu, value)
        return self._loop(server).tpot_s(
            CostModel.of(gpu, model, server[2]),
            kv_tokens=kv_pool_tokens(gpu, model, server[2]),
            reserves=gpu.engine.name == "trtllm",
            accepted=accepted,
        )

    def _loop(self, server: Served) -> Loop:
        rows = [self._rows[place] for place in self._groups[server]]
        names = [field.name for field in dataclasses.fields(Loop)]
        return Loop(*(np.array([getattr(row, name) for row in rows]) for name in names))

    def through_table_s(self) -> np.ndarray:
        """Predicted TPOT, float64[rows], of the shipped constants in the closed loop that fills
        latency tables."""
        result = np.empty(len(self._rows))
        for server, places in self._groups.items():
            gpu, model = shipped(server[0], server[1], known_version(server[3]))
            cost = CostModel.of(gpu, model, server[2])
            kv_tokens = kv_pool_tokens(gpu, model, server[2])
            result[places] = self._loop(server).through_table_s(cost, kv_tokens)
        return result


def kv_pool_tokens(gpu: ServedGpu, model: LargeModel, gpus: int) -> float:
    """Tokens that the KV pool of a measured server holds."""
    left = gpu.memory_bytes - weights_bytes(model, 0, gpus)
    return KV_SHARE * left / kv_bytes_per_token(model, False, gpus)


def fit(
    rows: Sequence[ServedRow], constants: Sequence[Constant], of_version: float = OF_VERSION
) -> np.ndarray:
    """Values of the constants, by robust least squares of log(predicted / measured) with priors.

    Args:
      rows: measured loops.
      constants: constants to fit.
      of_version: weight of the priors that draw a version to its engine, and a product to its
        kernels.

    Returns:
      float64[constants].
    """
    prediction = Prediction(rows, constants)
    measured_s = np.array([row.tpot_s for row in rows])
    place = {each.name: i for i, each in enumerate(constants)}
    parents = np.array([place[each.parent] if each.parent else -1 for each in constants])
    centres = np.array([each.centre for each in constants])
    most = np.array([LARGEST_SHARE if each.is_share else np.inf for each in constants])
    drawn = (parents >= 0) | np.array([each.of_kernels for each in constants])
    weights = np.where(drawn, of_version, WEAK)

    def values(logs: np.ndarray) -> np.ndarray:
        whole = logs + np.where(parents < 0, 0.0, logs[parents])
        return np.minimum(centres * np.exp(whole), most)

    def residuals(logs: np.ndarray) -> np.ndarray:
        rows_off = np.log(prediction.tpot_s(values(logs)) / measured_s)
        return np.concatenate([rows_off, weights * logs])

    # From the centres, so that the result does not depend on the shipped values.
    found = least_squares(
        residuals, np.zeros(len(constants)), loss="soft_l1", f_scale=_NOISE, max_nfev=50
    )
    return values(found.x)


def routing_spread(rows: Sequence[ServedRow]) -> float:
    """``ServedGpu.routing_spread`` of least error on models with experts, all else as shipped.

    The spread is no ``Constant``, because rows hardly tell it from the efficiencies of experts.
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
    """The third in which a row is held out."""
    return row.fold


def by_run(row: ServedRow) -> int:
    """The part in which a row is held out, the same for all rows of its run."""
    return int(hashlib.sha256(repr(row.run).encode()).hexdigest(), 16) % RUN_FOLDS


def held_out_errors(
    rows: Sequence[ServedRow],
    judged: Sequence[ServedRow],
    part: Callable[[ServedRow], int] = by_third,
    of_version: float = OF_VERSION,
) -> np.ndarray:
    """Relative error of each judged row's TPOT under constants fitted to ``rows`` without its part.

    Priors alone give the constants of a version that occurs only in the held-out part.

    Args:
      rows: rows to fit.
      judged: rows to predict.
      part: part of a row, ``by_third`` or ``by_run``.
      of_version: see ``fit``.

    Returns:
      float64[judged].
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
    """The stack, without its version if the engine's file has no constants of that version."""
    versions = load_json(f"engines/{stack.engine}.json")["versions"]
    return stack if stack.version in versions else dataclasses.replace(stack, version=None)


def main() -> None:
    """Prints the constants fitted to all rows, and the spread of routing fitted by itself, to all
    rows and without each third."""
    rows, _, _ = served_rows(Path(sys.argv[1]))
    constants = fitted_constants(rows)
    found = fit(rows, constants)
    named = {each.name: float(f"{x:.3g}") for each, x in zip(constants, found, strict=True)}
    named["routing_spread"] = round(routing_spread(rows), 3)
    for third in range(FOLDS):
        spread = routing_spread([row for row in rows if row.fold != third])
        named[f"routing_spread without third {third}"] = round(spread, 3)
    host_s, _ = fitted_host_s(Path(sys.argv[1]))
    named[f"host_s vllm {VERSION}, of its logs"] = float(f"{host_s:.3g}")
    print(json.dumps(named, indent=2))


if __name__ == "__main__":
    main()
