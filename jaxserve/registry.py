"""``jaxserve.make``: from a task's name to a ready environment."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.arrays.convert import on_device
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError, InputWarning
from jaxserve.fields import Tier
from jaxserve.sim.fast.state import Slo
from jaxserve.sim.machine.deployment import Deployment, build_deployment
from jaxserve.sim.machine.hardware import Gpu, load_gpu
from jaxserve.sim.machine.memory import longest_request_tokens
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import serve
from jaxserve.sim.table.extent import Extent, warn_beyond
from jaxserve.sim.table.file import TableFile, read_table_file, table_names
from jaxserve.sim.table.grid import PROMPT_LENGTHS
from jaxserve.sim.table.lookup import latency_table, lengths_for
from jaxserve.sim.traffic.output_ages import MEMORYLESS
from jaxserve.sim.traffic.traces import Trace, load_trace
from jaxserve.sim.traffic.workload import Regimes, TrafficClasses, Workload
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action
from jaxserve.tasks.overrides import override
from jaxserve.tasks.replay import (
    TRACE_AGES,
    Replay,
    recorded_reuse,
    repeated_note,
    replay_spec,
    shared_slo_note,
    trace_path,
)
from jaxserve.tasks.reward import RewardModel
from jaxserve.tasks.slos import KindSlo
from jaxserve.tasks.spec import CLASS_COUNT, Stream, TaskSpec, load_task
from jaxserve.tasks.traffic import (
    expected_traffic,
    longest_mean_tokens,
    traffic_classes,
    traffic_demand,
    traffic_regimes,
)

_UNUSED_TTFT_SLO_S, _UNUSED_TPOT_SLO_S = 10.0, 1.0
"""Objectives of traffic classes that a task does not have; no request is judged by them."""


def make(
    task: str | int | TaskSpec,
    *,
    hardware: str | None = None,
    model: str | None = None,
    table: str | Path | None = None,
    trace: str | Path | Trace | None = None,
    slos: Mapping[str, KindSlo] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ServeEnv:
    """Builds an environment.

    Args:
      task: name of a built-in task, its alias (1, 2, 3), the path of a task file, or a TaskSpec.
      hardware: GPU name, or path of a GPU file; default is the task's. On another GPU the task's
        memory limit is the same share of its memory, so that it binds alike.
      model: name of a model, or path of a file such as Hugging Face's config.json; default is the
        task's.
      table: path of a latency table, e.g. one that ``jaxserve table fit`` wrote; default is the
        built-in table of the task's model on ``hardware``. Where neither task nor overrides say
        how many tokens an iteration may process or the KV pool holds, the table does. Where
        traffic or the batch cap leave what its load test measured, an InputWarning says so.
      trace: path of a recorded trace (Azure, Mooncake or BurstGPT format) or a loaded one; it
        replaces the traffic of a task with one stream, see ``jaxserve.tasks.replay``. Running
        sequences then end as the recorded lengths say (``TaskSpec.output_ages``). Where requests
        are not replayed as they were recorded (``Trace.note``), or prompts begin alike and the
        deployment caches no prefixes, an InputWarning says so.
      slos: objectives of each kind of request, where the trace tells kinds. Without any all kinds
        have the task's, and an InputWarning says so where there are several.
      overrides: fields of the task to change: ``horizon``, ``randomisation``, ``knobs``,
        ``deployment``, ``objective``, ``output_ages``, ``rate_scale``, ``burst_scale``; see
        ``jaxserve.tasks.overrides``.

    Raises:
      InputError: anything unknown, unreadable or out of range.
    """
    resolved = _resolve(task, hardware, model, table, trace, slos, overrides)
    for note in _notes(resolved, slos):
        warnings.warn(note, InputWarning, stacklevel=2)
    warn_beyond(resolved.table.metadata.measured, _extent(resolved.spec))
    return _assemble(resolved)


@dataclass(frozen=True)
class _Resolved:
    """The arguments of ``make`` after defaults and overrides, with files read and checked."""

    spec: TaskSpec
    deployment: Deployment
    table: TableFile
    token_budget: int
    trace: Trace | None
    longest_tokens: float
    """tokens of the longest request that can be served, prompt and output together."""
    replay: Replay | None
    """arrivals of the trace; None where traffic is drawn."""


def _resolve(
    task: str | int | TaskSpec,
    hardware: str | None,
    model: str | None,
    table: str | Path | None,
    trace: str | Path | Trace | None,
    slos: Mapping[str, KindSlo] | None,
    overrides: Mapping[str, Any] | None,
) -> _Resolved:
    """Decides which value stands; the arguments are those of ``make``.

    A named model, GPU or trace stands before the task's own, overrides before both, and the table's
    token budget where neither task nor overrides have one.
    """
    spec = task if isinstance(task, TaskSpec) else load_task(task)
    if model is not None:
        spec = dataclasses.replace(spec, model=model)
    if trace is None or _is_own(trace, spec):
        trace = spec.trace
    elif spec.output_ages == MEMORYLESS:
        spec = dataclasses.replace(spec, output_ages=TRACE_AGES)
    served_on = spec.hardware if hardware is None else hardware
    gpu = load_gpu(served_on)
    if hardware is not None:
        spec = _with_limit_of(spec, gpu)
    spec = override(spec, {} if overrides is None else overrides, recorded=trace is not None)
    _check_replicas(spec)
    file = _table_of(spec, gpu, table)
    budget = spec.deployment.token_budget or file.metadata.token_budget
    deployment = _deployment(spec, served_on, file, budget)
    if trace is not None and not isinstance(trace, Trace):
        trace = load_trace(trace_path(_path("trace", trace)))
    if slos and trace is None:
        raise InputError(
            f"slos has objectives of kinds of a trace, but task {spec.name} replays none; name one "
            "as trace"
        )
    context = load_model(spec.model).context_tokens
    longest = longest_request_tokens(
        _pools(spec, deployment)[1], context, deployment.on_host().sequence_kv
    )
    replay = None
    if trace is None:
        _check_longest(spec, longest)
    else:
        spec, replay = replay_spec(spec, trace, slos, longest)
    return _Resolved(spec, deployment, file, budget, trace, longest, replay)


def _check_replicas(spec: TaskSpec) -> None:
    """Refuses the knob ``replicas`` where nothing can be scaled, and more replicas than there are.

    Raises:
      InputError: says which.
    """
    held = spec.locked["replicas"]
    most = max(held, spec.limits.get("replicas", (0.0, 0.0))[1])
    if spec.deployment.fleet is None and ("replicas" in spec.knobs or held):
        raise InputError(
            f"task {spec.name} turns the replicas, but its deployment has no fleet: without "
            "start-up times all replicas serve all the time"
        )
    if most > spec.deployment.num_gpus:
        raise InputError(
            f"task {spec.name} has {most:g} replicas as a value of the knob; its deployment has "
            f"{spec.deployment.num_gpus}"
        )


def _pools(spec: TaskSpec, deployment: Deployment) -> NDArray[np.float64]:
    """KV tokens that one GPU has room for under the settings that the task's knobs allow: the
    least and the most."""
    tiers, depths, shares = (
        _knob_range(spec, knob)
        for knob in ("quantization_tier", "speculation_depth", "kv_budget_fraction")
    )
    drafting = slice(int(depths[0] > 0), int(depths[1] > 0) + 1)
    pools = np.asarray(deployment.kv_pool_tokens, np.float64)
    pools = pools[int(tiers[0]) : int(tiers[1]) + 1, drafting]
    return np.array([shares[0] * pools.min(), shares[1] * pools.max()])


def _lowered_note(resolved: _Resolved) -> str | None:
    """Note on requests that fit the KV pool, but not a budget to which knobs may lower it."""
    least, _ = _pools(resolved.spec, resolved.deployment)
    streams = resolved.spec.streams
    longest = max(stream.prompt.quantiles[-1] for stream in streams)
    if longest <= least:
        return None
    return (
        f"knobs may leave a GPU {least:,.0f} KV tokens; while they do, prompts of up to "
        f"{longest:,.0f} tokens are served all the same, which an engine would reject"
    )


def _check_longest(spec: TaskSpec, longest_tokens: float) -> None:
    """Refuses a task that draws requests which no engine would serve."""
    for stream in spec.streams:
        tokens = stream.prompt.quantiles[-1] + stream.output.quantiles[-1]
        if tokens > longest_tokens:
            raise InputError(
                f"task {spec.name}: the longest request of stream {stream.name} has {tokens:,.0f} "
                f"tokens, prompt and output together; KV pool and context length of {spec.model} "
                f"allow {longest_tokens:,.0f}: name another GPU or model, or shorten the lengths"
            )


def _notes(resolved: _Resolved, slos: Mapping[str, KindSlo] | None) -> Iterable[str]:
    """Sentences on what is not played as it was recorded, or as an engine would."""
    spec, trace = resolved.spec, resolved.trace
    lowered = _lowered_note(resolved)
    if trace is None:
        return filter(None, (lowered,))
    unused = None if spec.deployment.prefix_caching else repeated_note(trace)
    shared = None if slos else shared_slo_note(spec, trace)
    note = trace.note(resolved.longest_tokens)
    return filter(None, (note, lowered, unused, shared))


def _assemble(resolved: _Resolved) -> ServeEnv:
    """The environment of resolved arguments: their numbers as arrays on the device."""
    spec, trace = resolved.spec, resolved.trace
    classes, owner = traffic_classes(spec)
    if trace is not None and spec.deployment.prefix_caching:
        reuse = recorded_reuse(trace, spec.deployment.num_gpus)
        classes = dataclasses.replace(classes, reuse=reuse)
    regimes = traffic_regimes(spec, owner)
    streams = [spec.streams[i] for i in owner]
    ttft_slo_s = _per_class([s.ttft_slo_s for s in streams], _UNUSED_TTFT_SLO_S)
    tpot_slo_s = _per_class([s.tpot_slo_s for s in streams], _UNUSED_TPOT_SLO_S)
    lengths = lengths_for(longest_mean_tokens(classes))
    return ServeEnv(
        table=latency_table(resolved.table, resolved.token_budget, lengths),
        deployment=resolved.deployment,
        workload=_workload(spec, classes, regimes, owner, resolved.replay),
        slo=Slo(on_device(ttft_slo_s), on_device(tpot_slo_s)),
        reward=_reward_model(spec, streams, regimes, resolved.deployment, ttft_slo_s),
        knob_active=on_device([knob in spec.knobs for knob in KNOBS], np.bool_),
        locked=make_action(**spec.locked),
        lowest=make_action(**_limits(spec, 0)),
        highest=make_action(**_limits(spec, 1)),
        horizon=on_device(spec.horizon, np.int32),
        randomisation=on_device(spec.randomisation),
        time_scale=on_device(1.0),
        window_s=spec.window_s,
        ticks=spec.ticks,
    )


def _extent(spec: TaskSpec) -> Extent:
    """Extent of the task's traffic and knobs, to be compared with that of a table."""
    cap = _knob_range(spec, "batch_cap")[1]
    streams = [
        Extent.of_requests(float(cap), stream.prompt.quantiles, stream.output.quantiles)
        for stream in spec.streams
    ]
    return Extent.around(streams)


def _deployment(spec: TaskSpec, hardware: str, file: TableFile, token_budget: int) -> Deployment:
    gpu, llm = serve(hardware, spec.model, file.metadata.stack)
    measured = file.metadata.calibration
    pool = spec.deployment.kv_pool_tokens or (measured and measured.kv_pool_tokens)
    settings = dataclasses.replace(spec.deployment, token_budget=token_budget, kv_pool_tokens=pool)
    return build_deployment(gpu, llm, settings)


def _workload(
    spec: TaskSpec,
    classes: TrafficClasses,
    regimes: Regimes,
    owner: list[int],
    replay: Replay | None,
) -> Workload:
    """Args: ``replay`` of a trace, None where traffic is drawn."""
    workload = Workload(
        classes=classes, regimes=regimes, cycle_period_s=on_device(spec.cycle_period_s)
    )
    if replay is None:
        return dataclasses.replace(workload, demand=traffic_demand(spec, owner))
    counts, rejected = replay.counts, replay.rejected
    return dataclasses.replace(
        workload,
        replay_counts=on_device(counts),
        replay_rejected=None if rejected is None else on_device(rejected),
        replay_starts=on_device(np.arange(len(counts)), np.int32),
        replay_places=on_device(max(len(counts) - spec.horizon, 0) + 1, np.int32),
    )


def _reward_model(
    spec: TaskSpec,
    streams: Sequence[Stream],
    regimes: Regimes,
    deployment: Deployment,
    ttft_slo_s: NDArray[np.float32],
) -> RewardModel:
    objective = spec.objective
    expected_rps, mix = expected_traffic(regimes, spec.window_s)
    value = _per_class([s.value for s in streams], 0.0)
    energy_usd_per_s = np.float32(deployment.max_w) * np.float32(deployment.usd_per_joule)
    full_power_usd = np.float32(deployment.num_gpus) * (
        np.float32(deployment.usd_per_gpu_s) + energy_usd_per_s
    )
    return RewardModel(
        value=on_device(value),
        quality=on_device([_per_class([s.quality[t] for s in streams], 1.0) for t in Tier]),
        ttft_slo_s=on_device(ttft_slo_s),
        expected_value=on_device(expected_rps * spec.window_s * float(np.dot(mix, value))),
        expected_requests_per_s=on_device(expected_rps),
        memory_limit_gib=on_device(objective.memory_limit_gib),
        usd_scale=on_device(full_power_usd * np.float32(spec.window_s)),
        throughput_weight=on_device(objective.throughput_weight),
        latency_weight=on_device(objective.latency_weight),
        slo_weight=on_device(objective.slo_weight),
        cost_weight=on_device(objective.cost_weight),
        memory_weight=on_device(objective.memory_weight),
    )


def _per_class(values: list[float], fill: float) -> NDArray[np.float32]:
    """float32[F], filled up for classes that the task does not have."""
    return np.array(values + [fill] * (CLASS_COUNT - len(values)), np.float32)


def stack(envs: Sequence[ServeEnv]) -> ServeEnv:
    """Several environments as one with a leading axis, for ``jax.vmap``.

        envs = jaxserve.stack([make("bursty_workload"), make("static_workload", hardware=...)])
        states, _ = jax.vmap(lambda env, key: env.reset(key))(envs, keys)

    Raises:
      InputError: there is none, something else is among them, or arrays of two are not alike; the
        error says what differs, such as ticks, the kind of traffic or prefix caching.
    """
    if not envs:
        raise InputError("there are 0 environments to stack; at least 1 is needed")
    for env in envs:
        if not isinstance(env, ServeEnv):
            raise InputError(f"stack got {env!r:.60}; it takes environments that make built")
    layouts = [
        (jax.tree.structure(env), [leaf.shape for leaf in jax.tree.leaves(env)]) for env in envs
    ]
    for place, layout in enumerate(layouts):
        if layout != layouts[0]:
            differing = _differing(envs[0], envs[place])
            raise InputError(f"environments 0 and {place} cannot be stacked: {differing}")
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *envs)


def _differing(first: ServeEnv, other: ServeEnv) -> str:
    """Why the arrays of two environments are not alike."""
    pairs = zip(_layout(first).items(), _layout(other).values(), strict=True)
    found = [f"{what} is {one} and {two}" for (what, one), two in pairs if one != two]
    return "; ".join(found) or "their arrays have different shapes"


def _layout(env: ServeEnv) -> dict[str, str]:
    """Properties that decide which arrays an environment has, and their shapes."""
    classes, counts = env.workload.classes, env.workload.replay_counts
    ages, reuse = classes.output_ages, classes.reuse
    fleet, demand = env.deployment.fleet, env.workload.demand
    no_rejects = env.workload.replay_rejected is None
    return {
        "window_s": f"{env.window_s:g}",
        "ticks": f"{env.ticks}",
        "output_ages": f"{MEMORYLESS if ages is None else ages.hazard.shape[-1] - 1}",
        "the table's longest prompt": f"{PROMPT_LENGTHS[env.table.lengths - 1]:,} tokens",
        "traffic": "drawn" if counts is None else f"a recording of {len(counts):,} windows",
        "requests too long to be served": "none" if no_rejects else "some",
        "the fleet": "one that never changes" if fleet is None else f"of {fleet.places} replicas",
        "demand": "steady over the day"
        if demand is None
        else f"of {demand.excess.shape[-1]} streams over the day",
        "prefix caching": "without effect"
        if reuse is None
        else f"on {reuse.product.shape[-3]} GPUs",
    }


def _is_own(trace: str | Path | Trace, spec: TaskSpec) -> bool:
    """Whether a trace is named that the task replays anyway."""
    if spec.trace is None or isinstance(trace, Trace):
        return False
    return trace_path(_path("trace", trace)) == trace_path(spec.trace)


def _limits(spec: TaskSpec, end: int) -> dict[str, float]:
    """The least (0) or greatest (1) value of every knob."""
    return {
        knob: bound.number(spec.limits.get(knob, (bound.low, bound.high))[end])
        for knob, bound in ACTION_BOUNDS.items()
    }


def _knob_range(spec: TaskSpec, knob: str) -> tuple[float, float]:
    """The least and the greatest value that a knob may have in the task."""
    if knob not in spec.knobs:
        return spec.locked[knob], spec.locked[knob]
    return _limits(spec, 0)[knob], _limits(spec, 1)[knob]


def _with_limit_of(spec: TaskSpec, gpu: Gpu) -> TaskSpec:
    """The task with a memory limit that is the same share of this GPU as it is of its own."""
    scale = gpu.memory_bytes / load_gpu(spec.hardware).memory_bytes
    limit = spec.objective.memory_limit_gib * scale
    return dataclasses.replace(
        spec, objective=dataclasses.replace(spec.objective, memory_limit_gib=limit)
    )


def _path(argument: str, value: object) -> str | Path:
    if not isinstance(value, str | Path):
        checks.refuse(argument, value, "a name or a path")
    return value


def _table_of(spec: TaskSpec, gpu: Gpu, table: str | Path | None) -> TableFile:
    """The named table, or the packaged one of the task's model on this GPU; it must be of both."""
    model = load_model(spec.model).name
    if table is None:
        table = f"{model}__{gpu.name}"
        if table not in table_names():
            raise InputError(
                f"there is no packaged table of {model} on {gpu.name}; `jaxserve table build` or "
                "`table fit` makes one, to be named as table (packaged are "
                f"{', '.join(table_names())})"
            )
    file = read_table_file(_path("table", table))
    wanted = {
        "model": model,
        "hardware": gpu.name,
        "tensor_parallel": spec.deployment.tensor_parallel,
    }
    for field, value in wanted.items():
        found = getattr(file.metadata, field)
        if found != value:
            raise InputError(
                f"table {table} has {field} {found!r}; task {spec.name} needs {value!r}"
            )
    stack = spec.deployment.stack
    if stack is not None and stack != file.metadata.stack:
        raise InputError(
            f"table {table} is of {file.metadata.stack or 'no stack'}; task {spec.name} "
            f"needs {stack}"
        )
    return file
