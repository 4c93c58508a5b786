"""Task specifications: JSON in, validated frozen dataclasses out, every error naming its field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError
from jaxserve.sim import lengths
from jaxserve.sim.acceptance import profile_names
from jaxserve.sim.deployment import DeploymentSettings
from jaxserve.sim.lengths import LengthDistribution
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS

CLASS_COUNT = 6
"""Traffic classes of every task (unused ones have no traffic), so that tasks can be stacked."""
REGIME_COUNT = 4
"""Regimes of every task; a task with fewer repeats them."""
SPEC_VERSION = 1


@dataclass(frozen=True)
class Stream:
    """One kind of request; its prompt lengths may be split into several traffic classes."""

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
    """One traffic regime; ``mix`` maps stream names to shares."""

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
    """Weights and limits of the reward; see ``jaxserve.tasks.reward``."""

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


def task_names() -> tuple[str, ...]:
    """Built-in tasks, in order of difficulty."""
    specs = [
        (json.loads(path.read_text()).get("alias") or 99, path.stem)
        for path in (data_dir() / "tasks").glob("*.json")
    ]
    return tuple(name for _, name in sorted(specs))


def load_task(task: str | int) -> TaskSpec:
    """Loads a built-in task by name or alias (1, 2, 3), or a task file by path.

    Raises:
      InputError: unknown name, unreadable file, or a field that is wrong.
    """
    if isinstance(task, bool) or not isinstance(task, int | str):
        raise InputError(f"task is {task!r}; it must be a name, an alias (1, 2, 3) or a path")
    names = task_names()
    text = str(task)
    if text.isdigit():
        matches = [name for name in names if load_task(name).alias == int(text)]
        if not matches:
            raise InputError(f"task {text} is unknown; the aliases are 1, 2 and 3")
        text = matches[0]
    path = data_dir() / "tasks" / f"{text}.json"
    if text not in names:
        path = Path(text)
        if path.suffix != ".json" or not path.is_file():
            raise InputError(
                f"task {text!r} is unknown; the tasks are {', '.join(names)}, "
                "or the path of a JSON file"
            )
    try:
        data = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"task file {path.name} is not readable JSON: {error}") from None
    return parse_task(data, path.stem)


def parse_task(data: Any, name: str) -> TaskSpec:
    """Validates the content of a task file.

    Raises:
      InputError: names the field, its value and what is allowed.
    """
    where = f"task {name}"
    top = _mapping(data, where)
    version = top.get("spec_version")
    if version != SPEC_VERSION:
        raise InputError(f"{where}: spec_version is {version!r}; it must be {SPEC_VERSION}")
    known = {f.name for f in fields(TaskSpec)} | {"spec_version"}
    _only(top, known - {"name"}, where)

    streams = tuple(
        _stream(item, f"{where}: streams[{i}]")
        for i, item in enumerate(_list(top, "streams", where))
    )
    bins = sum(stream.bins for stream in streams)
    if bins > CLASS_COUNT:
        raise InputError(f"{where}: streams have {bins} bins in all; at most {CLASS_COUNT} fit")
    names = [stream.name for stream in streams]
    if len(set(names)) != len(names):
        raise InputError(f"{where}: streams have duplicate names; they must differ")
    regimes = tuple(
        _regime(item, names, f"{where}: regimes[{i}]")
        for i, item in enumerate(_list(top, "regimes", where))
    )
    if len(regimes) > REGIME_COUNT:
        raise InputError(f"{where}: there are {len(regimes)} regimes; at most {REGIME_COUNT} fit")
    knobs = tuple(_list(top, "knobs", where))
    for knob in knobs:
        if knob not in KNOBS:
            raise InputError(f"{where}: knob {knob!r} is unknown; allowed are {', '.join(KNOBS)}")
    locked = {**DEFAULT_ACTION, **_mapping(top.get("locked", {}), f"{where}: locked")}
    _only(locked, set(KNOBS), f"{where}: locked")
    for knob, bound in ACTION_BOUNDS.items():
        locked[knob] = _number(locked, knob, f"{where}: locked", bound.low, bound.high)
    for key, low, high in (("horizon", 1, 100_000), ("ticks", 1, 64)):
        value = top.get(key, getattr(TaskSpec, key))
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise InputError(
                f"{where}: {key} is {value!r}; it must be a whole number from {low} to {high}"
            )
    return TaskSpec(
        name=name,
        title=_text(top, "title", where),
        difficulty=_text(top, "difficulty", where),
        description=_text(top, "description", where),
        hardware=_text(top, "hardware", where),
        model=_text(top, "model", where),
        deployment=_settings(top.get("deployment", {}), f"{where}: deployment"),
        knobs=knobs,
        streams=streams,
        regimes=regimes,
        objective=_objective(top.get("objective", {}), f"{where}: objective"),
        version=top.get("version", 1),
        alias=top.get("alias"),
        horizon=top.get("horizon", 200),
        window_s=_number(top, "window_s", where, 0.1, 60.0, 1.0),
        ticks=top.get("ticks", 8),
        cycle_period_s=_number(top, "cycle_period_s", where, 1.0, 1e6, 60.0),
        randomisation=_number(top, "randomisation", where, 0.0, 0.5, 0.0),
        trace=_text(top, "trace", where) if "trace" in top else None,
        locked=locked,
    )


def _stream(data: Any, where: str) -> Stream:
    item = _mapping(data, where)
    _only(item, {f.name for f in fields(Stream)}, where)
    acceptance = _text(item, "acceptance", where)
    if acceptance not in profile_names():
        raise InputError(
            f"{where}: acceptance is {acceptance!r}; allowed are {', '.join(profile_names())}"
        )
    quality = item.get("quality", list(Stream.quality))
    if not isinstance(quality, list) or len(quality) != 3:
        raise InputError(f"{where}: quality is {quality!r}; it must be three numbers from 0 to 1")
    return Stream(
        name=_text(item, "name", where),
        prompt=_lengths(item.get("prompt"), f"{where}.prompt"),
        output=_lengths(item.get("output"), f"{where}.output"),
        acceptance=acceptance,
        ttft_slo_s=_number(item, "ttft_slo_s", where, 1e-3, 1e3),
        tpot_slo_s=_number(item, "tpot_slo_s", where, 1e-4, 1e2),
        priority=int(_number(item, "priority", where, 0, 2, 1)),
        bins=int(_number(item, "bins", where, 1, CLASS_COUNT, 1)),
        value=_number(item, "value", where, 0.0, 1e6, 1.0),
        quality=tuple(
            _number({"quality": q}, "quality", where, 0.0, 1.0) for q in quality
        ),  # type: ignore[arg-type]
    )


def _regime(data: Any, streams: list[str], where: str) -> Regime:
    item = _mapping(data, where)
    _only(item, {f.name for f in fields(Regime)}, where)
    mix = _mapping(item.get("mix"), f"{where}.mix")
    _only(mix, set(streams), f"{where}.mix")
    shares = {name: _number(mix, name, f"{where}.mix", 0.0, 1.0) for name in mix}
    if not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6):
        raise InputError(f"{where}.mix: shares sum to {sum(shares.values()):g}; they must sum to 1")
    return Regime(
        name=_text(item, "name", where),
        rate_rps=_number(item, "rate_rps", where, 0.0, 1e4),
        mix=shares,
        dwell_s=_range(item, "dwell_s", where, 1.0, 1e6, Regime.dwell_s),
        burst_multiplier=_range(
            item, "burst_multiplier", where, 1.0, 1e3, Regime.burst_multiplier
        ),
        burst_start_per_s=_number(item, "burst_start_per_s", where, 0.0, 1.0, 0.0),
        burst_stop_per_s=_number(item, "burst_stop_per_s", where, 1e-6, 1.0, 1.0),
        cycle_amplitude=_number(item, "cycle_amplitude", where, 0.0, 1.0, 0.0),
        acceptance_scale=_number(item, "acceptance_scale", where, 0.0, 3.0, 1.0),
    )


def _settings(data: Any, where: str) -> DeploymentSettings:
    item = _mapping(data, where)
    _only(item, {f.name for f in fields(DeploymentSettings)}, where)
    values: dict[str, Any] = {}
    for spec in fields(DeploymentSettings):
        if spec.name in item:
            number = _number(item, spec.name, where, 0.0, 1e6)
            values[spec.name] = int(number) if isinstance(spec.default, int) else number
    return DeploymentSettings(**values)


def _objective(data: Any, where: str) -> Objective:
    item = _mapping(data, where)
    _only(item, {f.name for f in fields(Objective)}, where)
    if "memory_limit_gib" not in item:
        raise InputError(f"{where}: memory_limit_gib is missing")
    return Objective(**{key: _number(item, key, where, 0.0, 1e6) for key in item})


def _lengths(data: Any, where: str) -> LengthDistribution:
    item = dict(_mapping(data, where))
    kind = item.pop("kind", None)
    makers = {
        "lognormal": (lengths.lognormal, ("mu", "sigma", "low", "high")),
        "uniform": (lengths.uniform, ("low", "high")),
    }
    if kind == "quantiles":
        table = item.get("values")
        if not isinstance(table, list):
            raise InputError(f"{where}: values is missing; it must be a list of token counts")
        return lengths.from_samples(table)
    if kind not in makers:
        raise InputError(
            f"{where}: kind is {kind!r}; allowed are lognormal, uniform and quantiles"
        )
    make, parameters = makers[kind]
    _only(item, set(parameters), where)
    return make(*(_number(item, name, where, 0.0, 1e6) for name in parameters))


def _mapping(data: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InputError(f"{where} is {type(data).__name__}; it must be a JSON object")
    return data


def _list(data: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = data.get(key)
    if not isinstance(value, list) or not value:
        raise InputError(f"{where}: {key} must be a list with at least one entry")
    return value


def _only(data: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(data) - known)
    if unknown:
        raise InputError(
            f"{where}: field {unknown[0]!r} is unknown; allowed are {', '.join(sorted(known))}"
        )


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: {key} is {value!r}; it must be a text")
    return value


def _number(
    data: Mapping[str, Any],
    key: str,
    where: str,
    low: float,
    high: float,
    default: float | None = None,
) -> float:
    value = data.get(key, default)
    bad = isinstance(value, bool) or not isinstance(value, int | float)
    if bad or not low <= value <= high:
        raise InputError(f"{where}: {key} is {value!r}; it must be a number from {low:g} to {high:g}")
    return float(value)


def _range(
    data: Mapping[str, Any],
    key: str,
    where: str,
    low: float,
    high: float,
    default: tuple[float, float],
) -> tuple[float, float]:
    value = data.get(key, list(default))
    ok = (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        and low <= value[0] <= value[1] <= high
    )
    if not ok:
        raise InputError(
            f"{where}: {key} is {value!r}; it must be two rising numbers from {low:g} to {high:g}"
        )
    return float(value[0]), float(value[1])
