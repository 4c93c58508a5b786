"""Task specifications: JSON in, validated frozen dataclasses out, every error naming its field."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxserve.datafiles import data_dir, read_json
from jaxserve.errors import InputError
from jaxserve.sim import lengths
from jaxserve.sim.acceptance import profile_names
from jaxserve.sim.deployment import MAX_GPUS, DeploymentSettings
from jaxserve.sim.lengths import LengthDistribution
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS
from jaxserve.tasks import checks
from jaxserve.tasks.reward import MAX_WEIGHT

CLASS_COUNT = 6
"""Traffic classes of every task (unused ones have no traffic), so that tasks can be stacked."""
REGIME_COUNT = 4
"""Regimes of every task; a task with fewer repeats them."""
SPEC_VERSION = 1
MAX_HORIZON = 100_000
MAX_RANDOMISATION = 0.5
_FOR_PEOPLE = ("title", "difficulty", "description", "alias")


@dataclass(frozen=True)
class Stream:
    """One kind of request; its prompt lengths may be split into several traffic classes.

    Attributes:
      name: what the mixes of regimes call it.
      prompt, output: lengths, tokens.
      acceptance: profile of draft acceptance, see ``jaxserve.sim.acceptance``.
      ttft_slo_s, tpot_slo_s: objectives, seconds.
      priority: group, 0 = served first, at most 2.
      bins: traffic classes that its prompt lengths are split into.
      value: worth of a request that meets its objectives.
      quality: share of that worth that answers keep at the tiers FP16, INT8 and INT4.
    """

    name: str
    prompt: LengthDistribution
    output: LengthDistribution
    acceptance: str
    ttft_slo_s: float
    tpot_slo_s: float
    priority: int = 1
    bins: int = 1
    value: float = 1.0
    quality: tuple[float, float, float] = (1.0, 0.995, 0.975)


@dataclass(frozen=True)
class Regime:
    """One traffic regime.

    Attributes:
      name: for reports.
      rate_rps: arrivals per second outside bursts.
      mix: share of each stream, by name.
      dwell_s: shortest and longest stay in the regime, seconds.
      burst_multiplier: smallest and largest factor of a burst on the rate.
      burst_start_per_s, burst_stop_per_s: chance per second that a burst begins or ends.
      cycle_amplitude: relative amplitude of the rate's sinusoidal cycle, 0..1.
      acceptance_scale: factor on the draft tokens accepted per step.
    """

    name: str
    rate_rps: float
    mix: Mapping[str, float]
    dwell_s: tuple[float, float] = (40.0, 60.0)
    burst_multiplier: tuple[float, float] = (1.0, 1.0)
    burst_start_per_s: float = 0.0
    burst_stop_per_s: float = 1.0
    cycle_amplitude: float = 0.0
    acceptance_scale: float = 1.0


@dataclass(frozen=True)
class Objective:
    """Weights of the reward and the memory limit of one GPU; see ``jaxserve.tasks.reward``."""

    memory_limit_gib: float
    throughput_weight: float = 1.0
    latency_weight: float = 0.0
    slo_weight: float = 1.0
    cost_weight: float = 0.05
    memory_weight: float = 1.0


@dataclass(frozen=True)
class TaskSpec:
    """Everything that defines a task. Times in seconds."""

    name: str
    title: str
    difficulty: str
    description: str
    hardware: str
    model: str
    deployment: DeploymentSettings
    knobs: tuple[str, ...]
    streams: tuple[Stream, ...]
    regimes: tuple[Regime, ...]
    objective: Objective
    version: int = 1
    alias: int | None = None
    horizon: int = 200
    window_s: float = 1.0
    ticks: int = 8
    cycle_period_s: float = 60.0
    randomisation: float = 0.0
    trace: str | None = None
    """file name of a packaged trace, or a path, that replaces random traffic."""
    locked: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_ACTION))
    file: Path | None = None
    """where a task that is not built in was read from; its anchors lie beside it."""
    digest: str = ""
    """of all that the file says, but for the texts that are for people."""


def task_names() -> tuple[str, ...]:
    """Built-in tasks, in order of difficulty."""
    paths = (data_dir() / "tasks").glob("*.json")
    specs = [(_read(path).get("alias") or 99, path.stem) for path in paths]
    return tuple(name for _, name in sorted(specs))


def task_path(name: str) -> Path:
    """Where the file of a built-in task lies."""
    return data_dir() / "tasks" / f"{name}.json"


def load_task(task: str | int) -> TaskSpec:
    """Loads a built-in task by name or alias (1, 2, 3), or a task file by path.

    Raises:
      InputError: unknown name, unreadable file, or a field that is wrong.
    """
    if isinstance(task, bool) or not isinstance(task, int | str):
        raise InputError(f"task is {task!r}; it must be a name, an alias (1, 2, 3) or a path")
    names = task_names()
    text = str(task)
    if text.isdecimal():
        matches = [name for name in names if load_task(name).alias == int(text)]
        if not matches:
            raise InputError(f"task {text} is unknown; the aliases are 1, 2 and 3")
        text = matches[0]
    if text in names:
        return parse_task(_read(task_path(text)), text)
    path = Path(text)
    if path.suffix != ".json" or not path.is_file():
        raise InputError(
            f"task {text!r} is unknown; the tasks are {', '.join(names)}, "
            "or the path of a JSON file"
        )
    return dataclasses.replace(parse_task(_read(path), path.stem), file=path)


def parse_task(data: Any, name: str) -> TaskSpec:
    """Validates the content of a task file.

    Raises:
      InputError: names the field, its value and what is allowed.
    """
    where = f"task {name}"
    top = checks.mapping(data, where)
    version = top.get("spec_version")
    if isinstance(version, bool) or version != SPEC_VERSION:
        raise InputError(f"{where}: spec_version is {version!r}; it must be {SPEC_VERSION}")
    fields = _field_names(TaskSpec) - {"name", "file", "digest"}
    checks.only(top, fields | {"spec_version"}, where)
    streams = tuple(
        _stream(item, f"{where}: streams[{i}]")
        for i, item in enumerate(checks.entries(top, "streams", where))
    )
    bins = sum(stream.bins for stream in streams)
    if bins > CLASS_COUNT:
        raise InputError(f"{where}: streams have {bins} bins in all; at most {CLASS_COUNT} fit")
    names = [stream.name for stream in streams]
    if len(set(names)) != len(names):
        raise InputError(f"{where}: streams have duplicate names; they must differ")
    regimes = tuple(
        _regime(item, names, f"{where}: regimes[{i}]")
        for i, item in enumerate(checks.entries(top, "regimes", where))
    )
    if len(regimes) > REGIME_COUNT:
        raise InputError(f"{where}: there are {len(regimes)} regimes; at most {REGIME_COUNT} fit")
    values = {stream.name: stream.value for stream in streams}
    if not any(r.rate_rps * values[s] * share for r in regimes for s, share in r.mix.items()):
        raise InputError(f"{where}: no regime has a rate_rps above 0 of a stream of value above 0")
    return TaskSpec(
        name=name,
        title=checks.text(top, "title", where),
        difficulty=checks.text(top, "difficulty", where),
        description=checks.text(top, "description", where),
        hardware=checks.text(top, "hardware", where),
        model=checks.text(top, "model", where),
        deployment=parse_deployment(top.get("deployment", {}), f"{where}: deployment"),
        knobs=parse_knobs(checks.entries(top, "knobs", where), where),
        streams=streams,
        regimes=regimes,
        objective=parse_objective(top.get("objective", {}), f"{where}: objective"),
        version=checks.whole(top, "version", where, 1, 1_000_000, 1),
        alias=checks.whole(top, "alias", where, 1, 98) if "alias" in top else None,
        horizon=checks.whole(top, "horizon", where, 1, MAX_HORIZON, TaskSpec.horizon),
        window_s=checks.number(top, "window_s", where, 0.1, 60.0, TaskSpec.window_s),
        ticks=checks.whole(top, "ticks", where, 1, 64, TaskSpec.ticks),
        cycle_period_s=checks.number(
            top, "cycle_period_s", where, 1.0, 1e6, TaskSpec.cycle_period_s
        ),
        randomisation=checks.number(
            top, "randomisation", where, 0.0, MAX_RANDOMISATION, TaskSpec.randomisation
        ),
        trace=checks.text(top, "trace", where) if "trace" in top else None,
        locked=_locked(top.get("locked", {}), f"{where}: locked"),
        digest=_digest(top),
    )


def parse_knobs(names: Sequence[Any], where: str) -> tuple[str, ...]:
    """Knobs that an agent may turn."""
    for name in names:
        if name not in KNOBS:
            raise InputError(f"{where}: knob {name!r} is unknown; allowed are {', '.join(KNOBS)}")
    if not names or len(set(names)) != len(names):
        raise InputError(f"{where}: knobs must be at least one name, each only once")
    return tuple(names)


def parse_deployment(data: Any, where: str) -> DeploymentSettings:
    """Fields of DeploymentSettings; those left out keep their default."""
    item = checks.mapping(data, where)
    checks.only(item, _field_names(DeploymentSettings), where)
    values: dict[str, float] = {}
    for known in dataclasses.fields(DeploymentSettings):
        if known.name in item:
            low, high = _DEPLOYMENT_RANGES[known.name]
            check = checks.whole if isinstance(known.default, int) else checks.number
            values[known.name] = check(item, known.name, where, low, high)
    return DeploymentSettings(**values)  # pyright: ignore[reportArgumentType]


def parse_objective(data: Any, where: str) -> Objective:
    """Fields of Objective; the memory limit has no default."""
    item = checks.mapping(data, where)
    checks.only(item, _field_names(Objective), where)
    limit = checks.number(item, "memory_limit_gib", where, 1.0, 1e4)
    weights = {
        name: checks.number(item, name, where, 0.0, MAX_WEIGHT)
        for name in item
        if name != "memory_limit_gib"
    }
    return Objective(memory_limit_gib=limit, **weights)


_DEPLOYMENT_RANGES = {
    "num_gpus": (1, MAX_GPUS),
    "tensor_parallel": (1, 64),
    "queue_capacity": (1, 4096),
    "memory_utilization": (0.1, 1.0),
    "token_budget": (64, 131_072),
    "restart_s": (0.0, 600.0),
    "rerole_s": (0.0, 600.0),
    "oom_restart_s": (0.0, 600.0),
    "frontend_s": (0.0, 10.0),
    "frontend_tail_s": (0.0, 10.0),
}


def _digest(top: Mapping[str, Any]) -> str:
    """Of the numbers as they are written, which is the same on every platform."""
    known = {name: value for name, value in top.items() if name not in _FOR_PEOPLE}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path) -> Any:
    return read_json(path, f"task file {path.name}")


def _stream(data: Any, where: str) -> Stream:
    item = checks.mapping(data, where)
    checks.only(item, _field_names(Stream), where)
    acceptance = checks.text(item, "acceptance", where)
    if acceptance not in profile_names():
        raise InputError(
            f"{where}: acceptance is {acceptance!r}; allowed are {', '.join(profile_names())}"
        )
    return Stream(
        name=checks.text(item, "name", where),
        prompt=_lengths(item.get("prompt"), f"{where}.prompt"),
        output=_lengths(item.get("output"), f"{where}.output"),
        acceptance=acceptance,
        ttft_slo_s=checks.number(item, "ttft_slo_s", where, 1e-3, 1e3),
        tpot_slo_s=checks.number(item, "tpot_slo_s", where, 1e-4, 1e2),
        priority=checks.whole(item, "priority", where, 0, 2, Stream.priority),
        bins=checks.whole(item, "bins", where, 1, CLASS_COUNT, Stream.bins),
        value=checks.number(item, "value", where, 0.0, 1e6, Stream.value),
        quality=_quality(item.get("quality", list(Stream.quality)), where),
    )


def _quality(value: Any, where: str) -> tuple[float, float, float]:
    numbers = isinstance(value, list) and all(map(checks.is_number, value))
    if not numbers or len(value) != 3 or not all(0.0 <= share <= 1.0 for share in value):
        raise InputError(f"{where}: quality is {value!r}; it must be three numbers from 0 to 1")
    return float(value[0]), float(value[1]), float(value[2])


def _regime(data: Any, streams: list[str], where: str) -> Regime:
    item = checks.mapping(data, where)
    checks.only(item, _field_names(Regime), where)
    mix = checks.mapping(item.get("mix"), f"{where}.mix")
    checks.only(mix, streams, f"{where}.mix")
    shares = {name: checks.number(mix, name, f"{where}.mix", 0.0, 1.0) for name in mix}
    if not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6):
        raise InputError(f"{where}.mix: shares sum to {sum(shares.values()):g}; they must sum to 1")

    def probability(name: str, low: float, default: float) -> float:
        return checks.number(item, name, where, low, 1.0, default)

    return Regime(
        name=checks.text(item, "name", where),
        rate_rps=checks.number(item, "rate_rps", where, 0.0, 1e4),
        mix=shares,
        dwell_s=checks.rising_pair(item, "dwell_s", where, 1.0, 1e6, Regime.dwell_s),
        burst_multiplier=checks.rising_pair(
            item, "burst_multiplier", where, 1.0, 1e3, Regime.burst_multiplier
        ),
        burst_start_per_s=probability("burst_start_per_s", 0.0, Regime.burst_start_per_s),
        burst_stop_per_s=probability("burst_stop_per_s", 1e-6, Regime.burst_stop_per_s),
        cycle_amplitude=probability("cycle_amplitude", 0.0, Regime.cycle_amplitude),
        acceptance_scale=checks.number(
            item, "acceptance_scale", where, 0.0, 3.0, Regime.acceptance_scale
        ),
    )


def _locked(data: Any, where: str) -> dict[str, float]:
    item = checks.mapping(data, where)
    checks.only(item, KNOBS, where)
    locked = {**DEFAULT_ACTION, **item}
    for knob, bound in ACTION_BOUNDS.items():
        if bound.integer:
            locked[knob] = checks.whole(locked, knob, where, int(bound.low), int(bound.high))
        else:
            locked[knob] = checks.number(locked, knob, where, bound.low, bound.high)
    return locked


def _lengths(data: Any, where: str) -> LengthDistribution:
    item = checks.mapping(data, where)
    kind = item.get("kind")
    families = {
        "lognormal": (lengths.lognormal, ("mu", "sigma", "low", "high")),
        "uniform": (lengths.uniform, ("low", "high")),
    }
    if kind == "quantiles":
        checks.only(item, ("kind", "values"), where)
        values = checks.entries(item, "values", where)
        if not all(map(checks.is_number, values)):
            raise InputError(f"{where}: values must be a list of token counts")
        make, arguments = lengths.from_samples, [values]
    elif isinstance(kind, str) and kind in families:
        make, parameters = families[kind]
        checks.only(item, ("kind", *parameters), where)
        arguments = [checks.number(item, name, where, 0.0, 1e6) for name in parameters]
    else:
        raise InputError(f"{where}: kind is {kind!r}; allowed are lognormal, uniform and quantiles")
    try:
        return make(*arguments)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _field_names(kind: type) -> set[str]:
    return {known.name for known in dataclasses.fields(kind)}
