"""Task specifications: JSON in, validated frozen dataclasses out, every error naming its field."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject, known_name, one_of, refuse, refuse_name
from jaxserve.datafiles import data_dir, load_json, read_json
from jaxserve.errors import InputError
from jaxserve.fields import MAX_CONTEXT_TOKENS, MAX_GPUS, TOKEN_BUDGETS
from jaxserve.sim.machine.acceptance import profile_names
from jaxserve.sim.machine.deployment import MAX_KV_POOL_TOKENS, DeploymentSettings
from jaxserve.sim.machine.fleet import MAX_DRAIN_S, MAX_START_S, FleetSettings
from jaxserve.sim.machine.stack import Stack
from jaxserve.sim.traffic import lengths
from jaxserve.sim.traffic.lengths import LengthDistribution
from jaxserve.sim.traffic.output_ages import MEMORYLESS
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS
from jaxserve.tasks.reward import MAX_WEIGHT

CLASS_COUNT = 6
"""Traffic classes of every task (unused ones have no traffic), so that tasks can be stacked."""
REGIME_COUNT = 4
"""Regimes of every task; a task with fewer repeats them."""
SPEC_VERSION = 1
MAX_HORIZON = 100_000
MAX_RANDOMISATION = 0.5
MAX_TENSOR_PARALLEL = 64
TTFT_SLO_S = (1e-3, 120.0)
"""Least and greatest objective on TTFT, s; a longer one is most likely in milliseconds."""
DEADLINE_S = (1.0, 900.0)
"""Least and greatest time in which work that may wait begins, s."""
TPOT_SLO_S = (1e-4, 10.0)
"""Least and greatest objective on TPOT, s."""
LAST_PRIORITY = 2
"""Priority that is served last; the first is 0."""
LEAST_OUTPUT_AGES, MAX_OUTPUT_AGES = 8, 128
_FOR_PEOPLE = ("title", "difficulty", "description", "alias")


@dataclass(frozen=True)
class Stream:
    """A kind of request; its prompt lengths may be split into several traffic classes."""

    name: str
    """name in the mixes of regimes."""
    prompt: LengthDistribution
    """prompt lengths, tokens."""
    output: LengthDistribution
    """output lengths, tokens."""
    acceptance: str
    """profile of draft acceptance, see ``jaxserve.sim.machine.acceptance``."""
    ttft_slo_s: float
    """limit on TTFT, s."""
    tpot_slo_s: float
    """limit on TPOT, s."""
    deferrable: bool = False
    """whether its requests may wait for minutes, as those of batch APIs do; ``ttft_slo_s`` is then
    the deadline of their first token."""
    priority: int = 1
    """group, 0 = served first, at most 2."""
    bins: int = 1
    """traffic classes that its prompt lengths are split into."""
    value: float = 1.0
    """worth of a request that meets its objectives."""
    quality: tuple[float, float, float] = (1.0, 0.995, 0.975)
    """share of that worth that answers keep at the tiers FP16, INT8 and INT4."""


@dataclass(frozen=True)
class Regime:
    """A traffic regime."""

    name: str
    """name in reports."""
    rate_rps: float
    """arrivals per second outside bursts."""
    mix: Mapping[str, float]
    """share of each stream, by name."""
    dwell_s: tuple[float, float] = (40.0, 60.0)
    """shortest and longest stay in the regime, seconds."""
    burst_multiplier: tuple[float, float] = (1.0, 1.0)
    """smallest and largest factor of a burst on the rate."""
    burst_start_per_s: float = 0.0
    """chance per second that a burst begins."""
    burst_stop_per_s: float = 1.0
    """chance per second that it ends."""
    cycle_amplitude: float = 0.0
    """relative amplitude of the rate's sinusoidal cycle, 0..1."""
    acceptance_scale: float = 1.0
    """factor on the draft tokens accepted per step."""


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
class DemandSettings:
    """Fitted demand that streams follow, see ``jaxserve.sim.traffic.demand``."""

    name: str
    """file in ``data/demand``, without its ending."""
    streams: Mapping[str, str]
    """stream of that file that a stream of the task follows; the other streams are steady."""


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
    output_ages: int = MEMORYLESS
    """bins of age in which the fast simulator counts running sequences; 1 makes outputs memoryless,
    which is faster."""
    cycle_period_s: float = 60.0
    randomisation: float = 0.0
    trace: str | None = None
    """file name of a packaged trace, or a path, that replaces random traffic."""
    demand: DemandSettings | None = None
    """hours of the day that rates follow; None where they do not."""
    locked: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_ACTION))
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """least and greatest value of a knob, where the range is smaller than the knob's own, as on a
    real engine that was started with less."""
    file: Path | None = None
    """file of a task that is not built in; its anchors lie beside it."""
    digest: str = ""
    """digest of the file's content, but for the texts that are for people."""


@functools.cache
def task_names() -> tuple[str, ...]:
    """Built-in tasks, in order of difficulty."""
    paths = (data_dir() / "tasks").glob("*.json")
    specs = [(_read(path).get("alias") or 99, path.stem) for path in paths]
    return tuple(name for _, name in sorted(specs))


def task_path(name: str) -> Path:
    """Path of the file of a built-in task."""
    return data_dir() / "tasks" / f"{name}.json"


def load_task(task: str | int) -> TaskSpec:
    """Loads a built-in task by name or alias (1, 2, 3), or a task file by path.

    Raises:
      InputError: unknown name, unreadable file, or a field that is wrong.
    """
    data, name, file = read_task(task)
    return dataclasses.replace(parse_task(data, name), file=file)


def read_task(task: str | int) -> tuple[Any, str, Path | None]:
    """The unchecked content of a task file, the task's name, and the path unless it is built in.

    Args:
      task: as for ``load_task``.

    Raises:
      InputError: unknown name or unreadable file.
    """
    if isinstance(task, bool) or not isinstance(task, int | str):
        refuse("task", task, "a name, an alias (1, 2, 3) or a path")
    names = task_names()
    text = str(task)
    if text.isdecimal():
        matches = [name for name in names if load_task(name).alias == int(text)]
        if not matches:
            refuse("task", int(text), "1, 2 or 3, which are the aliases, a name or a path")
        text = matches[0]
    text = known_name(text, names)
    if text in names:
        return _read(task_path(text)), text, None
    path = Path(text)
    if path.suffix != ".json" or not path.is_file():
        refuse_name("task", text, names, " or the path of a JSON file")
    return _read(path), path.stem, path


def parse_task(data: Any, name: str) -> TaskSpec:
    """Validates the content of a task file.

    Raises:
      InputError: names the field, its value and what is allowed.
    """
    where = f"task {name}"
    known = _field_names(TaskSpec) - {"name", "file", "digest"}
    top = JsonObject(data, where, known | {"spec_version"})
    top.whole("spec_version", SPEC_VERSION, SPEC_VERSION)
    streams = tuple(
        _stream(item, f"{where}: streams[{i}]") for i, item in enumerate(top.entries("streams"))
    )
    bins = sum(stream.bins for stream in streams)
    if bins > CLASS_COUNT:
        raise InputError(f"{where}: streams have {bins} bins in all; at most {CLASS_COUNT} fit")
    names = [stream.name for stream in streams]
    if len(set(names)) != len(names):
        raise InputError(f"{where}: streams have duplicate names; they must differ")
    regimes = tuple(
        _regime(item, names, f"{where}: regimes[{i}]")
        for i, item in enumerate(top.entries("regimes"))
    )
    if len(regimes) > REGIME_COUNT:
        raise InputError(f"{where}: there are {len(regimes)} regimes; at most {REGIME_COUNT} fit")
    values = {stream.name: stream.value for stream in streams}
    if not any(r.rate_rps * values[s] * share for r in regimes for s, share in r.mix.items()):
        raise InputError(f"{where}: no regime has a rate_rps above 0 of a stream of value above 0")
    return TaskSpec(
        name=name,
        title=top.text("title"),
        difficulty=top.text("difficulty"),
        description=top.text("description"),
        hardware=top.text("hardware"),
        model=top.text("model"),
        deployment=parse_deployment(top.get("deployment", {}), f"{where}: deployment"),
        knobs=parse_open_knobs(top.entries("knobs"), where),
        streams=streams,
        regimes=regimes,
        objective=parse_objective(top.get("objective", {}), f"{where}: objective"),
        version=top.whole("version", 1, 1_000_000, 1),
        alias=top.whole("alias", 1, 98) if "alias" in top else None,
        horizon=top.whole("horizon", 1, MAX_HORIZON, TaskSpec.horizon),
        window_s=top.number("window_s", 0.1, 60, TaskSpec.window_s),
        ticks=top.whole("ticks", 1, 64, TaskSpec.ticks),
        output_ages=parse_output_ages(top),
        cycle_period_s=top.number("cycle_period_s", 1, 1e6, TaskSpec.cycle_period_s),
        randomisation=top.number("randomisation", 0, MAX_RANDOMISATION, TaskSpec.randomisation),
        trace=top.text("trace") if "trace" in top else None,
        demand=_demand(top.inside("demand"), names) if "demand" in top else None,
        locked=_locked(top.get("locked", {}), f"{where}: locked"),
        limits=_limits(top.get("limits", {}), f"{where}: limits"),
        digest=_digest(top),
    )


def parse_open_knobs(names: Sequence[Any], where: str) -> tuple[str, ...]:
    """Knobs that an agent may turn."""
    for name in names:
        one_of(f"{where}: a knob", name, KNOBS)
    if not names or len(set(names)) != len(names):
        refuse(f"{where}: knobs", list(names), "at least one name, each only once")
    return tuple(names)


def parse_output_ages(item: JsonObject) -> int:
    """Bins of age, 1 where they are left out."""
    ages = item.whole("output_ages", MEMORYLESS, MAX_OUTPUT_AGES, MEMORYLESS)
    if MEMORYLESS < ages < LEAST_OUTPUT_AGES:
        allowed = f"{MEMORYLESS} or from {LEAST_OUTPUT_AGES} to {MAX_OUTPUT_AGES}"
        refuse(item.name("output_ages"), ages, allowed)
    return ages


def parse_deployment(data: Any, where: str) -> DeploymentSettings:
    """Fields of DeploymentSettings; fields left out keep their default."""
    item = JsonObject(data, where, _field_names(DeploymentSettings))
    values: dict[str, Any] = {}
    for known in dataclasses.fields(DeploymentSettings):
        if known.name == "prefix_caching":
            values[known.name] = known.name in item and item.flag(known.name)
        elif known.name == "stack" and known.name in item:
            values[known.name] = Stack.from_dict(item[known.name], item.name(known.name))
        elif known.name == "fleet" and known.name in item:
            values[known.name] = _fleet(item[known.name], item.name(known.name))
        elif known.name in item:
            low, high = _DEPLOYMENT_RANGES[known.name]
            check = item.whole if isinstance(low, int) else item.number
            values[known.name] = check(known.name, low, high)
    return DeploymentSettings(**values)


def _fleet(data: Any, where: str) -> FleetSettings:
    item = JsonObject(data, where, _field_names(FleetSettings))
    default = FleetSettings()
    shares = {
        name: item.number(name, 0, 1, getattr(default, name))
        for name in ("failing_share", "refused_share")
    }
    return FleetSettings(
        start_s=item.rising_pair("start_s", 0, MAX_START_S, default.start_s),
        drain_s=item.number("drain_s", 0, MAX_DRAIN_S, default.drain_s),
        **shares,
    )


def parse_objective(data: Any, where: str) -> Objective:
    """Fields of Objective; the memory limit has no default."""
    item = JsonObject(data, where, _field_names(Objective))
    limit = item.number("memory_limit_gib", 1, 1e4)
    weights = {name: item.number(name, 0, MAX_WEIGHT) for name in item}
    return Objective(**weights | {"memory_limit_gib": limit})


_DEPLOYMENT_RANGES = {
    "num_gpus": (1, MAX_GPUS),
    "tensor_parallel": (1, MAX_TENSOR_PARALLEL),
    "queue_capacity": (1, 4096),
    "memory_utilization": (0.1, 1.0),
    "token_budget": TOKEN_BUDGETS,
    "kv_pool_tokens": (1, MAX_KV_POOL_TOKENS),
    "restart_s": (0.0, 600.0),
    "rerole_s": (0.0, 600.0),
    "oom_restart_s": (0.0, 600.0),
    "frontend_s": (0.0, 10.0),
    "frontend_tail_s": (0.0, 10.0),
}


def _digest(top: Mapping[str, Any]) -> str:
    """Digest of the numbers as they are written, which is the same on every platform."""
    known = {name: value for name, value in top.items() if name not in _FOR_PEOPLE}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _read(path: Path) -> Any:
    return read_json(path, f"task file {path.name}")


def _stream(data: Any, where: str) -> Stream:
    item = JsonObject(data, where, _field_names(Stream))
    prompt, output = (_lengths(item.inside(name)) for name in ("prompt", "output"))
    longest = prompt.quantiles[-1] + output.quantiles[-1]
    if longest > MAX_CONTEXT_TOKENS:
        allowed = f"at most {MAX_CONTEXT_TOKENS}, the longest context of a latency table"
        refuse(f"{where}: longest prompt with longest output, tokens", f"{longest:.0f}", allowed)
    deferrable = "deferrable" in item and item.flag("deferrable")
    return Stream(
        name=item.text("name"),
        prompt=prompt,
        output=output,
        acceptance=item.one_of("acceptance", profile_names()),
        ttft_slo_s=item.seconds("ttft_slo_s", *(DEADLINE_S if deferrable else TTFT_SLO_S)),
        deferrable=deferrable,
        tpot_slo_s=item.seconds("tpot_slo_s", *TPOT_SLO_S),
        priority=item.whole("priority", 0, LAST_PRIORITY, Stream.priority),
        bins=item.whole("bins", 1, CLASS_COUNT, Stream.bins),
        value=item.number("value", 0, 1e6, Stream.value),
        quality=item.numbers("quality", 3, 0, 1, Stream.quality),
    )


def _regime(data: Any, streams: list[str], where: str) -> Regime:
    item = JsonObject(data, where, _field_names(Regime))
    mix = item.inside("mix", streams)
    shares = {name: mix.number(name, 0, 1) for name in mix}
    if not math.isclose(sum(shares.values()), 1.0, abs_tol=1e-6):
        refuse(f"{mix.where}: sum of the shares", sum(shares.values()), "1")
    return Regime(
        name=item.text("name"),
        rate_rps=item.number("rate_rps", 0, 1e4),
        mix=shares,
        dwell_s=item.rising_pair("dwell_s", 1, 1e6, Regime.dwell_s),
        burst_multiplier=item.rising_pair("burst_multiplier", 1, 1e3, Regime.burst_multiplier),
        burst_start_per_s=item.number("burst_start_per_s", 0, 1, Regime.burst_start_per_s),
        burst_stop_per_s=item.number("burst_stop_per_s", 1e-6, 1, Regime.burst_stop_per_s),
        cycle_amplitude=item.number("cycle_amplitude", 0, 1, Regime.cycle_amplitude),
        acceptance_scale=item.number("acceptance_scale", 0, 3, Regime.acceptance_scale),
    )


def demand_names() -> tuple[str, ...]:
    """Fitted demands, by name."""
    return tuple(sorted(path.stem for path in (data_dir() / "demand").glob("*.json")))


def _demand(item: JsonObject, streams: list[str]) -> DemandSettings:
    item = JsonObject(dict(item), item.where, _field_names(DemandSettings))
    name = item.one_of("name", demand_names())
    fitted = tuple(load_json(f"demand/{name}.json")["streams"])
    followed = item.inside("streams", streams)
    if not followed:
        refuse(item.name("streams"), {}, "at least one stream of the task")
    return DemandSettings(name, {stream: followed.one_of(stream, fitted) for stream in followed})


def _locked(data: Any, where: str) -> dict[str, float]:
    item = JsonObject(data, where, KNOBS)
    locked: dict[str, float] = {}
    for knob, bound in ACTION_BOUNDS.items():
        check = item.whole if bound.integer else item.number
        locked[knob] = check(knob, bound.low, bound.high, DEFAULT_ACTION[knob])
    return locked


def _limits(data: Any, where: str) -> dict[str, tuple[float, float]]:
    item = JsonObject(data, where, KNOBS)
    found = {}
    for knob in item:
        bound = ACTION_BOUNDS[knob]
        pair = item.rising_pair(knob, bound.low, bound.high)
        if bound.integer and any(value != round(value) for value in pair):
            refuse(item.name(knob), pair, "two whole numbers")
        found[knob] = pair
    return found


_FAMILIES = {
    "lognormal": (lengths.lognormal, ("mu", "sigma", "low", "high")),
    "uniform": (lengths.uniform, ("low", "high")),
    "quantiles": (lengths.from_samples, ("values",)),
}


def _lengths(item: JsonObject) -> LengthDistribution:
    make, parameters = _FAMILIES[item.one_of("kind", _FAMILIES)]
    item = JsonObject(item, item.where, ("kind", *parameters))
    if parameters == ("values",):
        arguments = [item.numbers("values", len(item.entries("values")))]
    else:
        arguments = [item.number(name, 0, 1e6) for name in parameters]
    try:
        return make(*arguments)
    except InputError as error:
        raise InputError(f"{item.where}: {error}") from None


def _field_names(kind: type) -> set[str]:
    return {known.name for known in dataclasses.fields(kind)}
