"""``jaxserve.make``: from a task's name to a ready environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.sim.acceptance import tokens_per_step
from jaxserve.sim.deployment import build_deployment
from jaxserve.sim.hardware import load_gpu, load_model
from jaxserve.sim.state import Slo
from jaxserve.sim.table import LatencyTable, latency_table
from jaxserve.sim.table_file import read_table_file
from jaxserve.sim.traces import Trace, load_trace
from jaxserve.sim.workload import Regimes, TrafficClasses, Workload
from jaxserve.spaces import KNOBS, make_action
from jaxserve.tasks.overrides import override
from jaxserve.tasks.replay import replay_spec, trace_path
from jaxserve.tasks.reward import RewardModel
from jaxserve.tasks.spec import CLASS_COUNT, REGIME_COUNT, TaskSpec, load_task


def make(
    task: str | int | TaskSpec,
    *,
    hardware: str | None = None,
    table: str | Path | None = None,
    trace: str | Path | Trace | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ServeEnv:
    """Builds an environment.

    Args:
      task: name of a built-in task, its alias (1, 2, 3), the path of a task file, or a TaskSpec.
      hardware: GPU name; default is the task's.
      table: path of a latency table, e.g. one that ``jaxserve table fit`` wrote; default is the
        built-in table of the task's model on ``hardware``.
      trace: path of a recorded trace (Azure, Mooncake or BurstGPT format) or a loaded one; it
        replaces the traffic of a task with one stream, see ``jaxserve.tasks.replay``.
      overrides: fields of the task to change: ``horizon``, ``randomisation``, ``knobs``,
        ``deployment``, ``objective``, ``rate_scale``, ``burst_scale``; see
        ``jaxserve.tasks.overrides``.

    Raises:
      InputError: anything unknown, unreadable or out of range.
    """
    spec = task if isinstance(task, TaskSpec) else load_task(task)
    trace = trace if trace is not None else spec.trace
    spec = override(spec, {} if overrides is None else overrides, recorded=trace is not None)
    gpu = load_gpu(spec.hardware if hardware is None else hardware)
    model = load_model(spec.model)
    table = f"{spec.model}__{gpu.name}" if table is None else _path("table", table)
    latency = _load_table(table, spec, gpu.name)
    deployment = build_deployment(gpu, model, spec.deployment)
    replay: dict[str, Any] = {}
    if trace is not None:
        if not isinstance(trace, Trace):
            trace = load_trace(trace_path(_path("trace", trace)))
        spec, counts = replay_spec(spec, trace)
        replay = {
            "replay_counts": jnp.asarray(counts, jnp.float32),
            "replay_start_max": jnp.int32(max(len(counts) - spec.horizon, 0)),
        }
    classes, owner = _classes(spec)
    regimes = _regimes(spec, owner)
    expected_rps, mix = _expected_traffic(regimes)
    streams = [spec.streams[i] for i in owner]

    def per_class(values: list[float], fill: float) -> jnp.ndarray:
        return jnp.asarray(values + [fill] * (CLASS_COUNT - len(values)), jnp.float32)

    value = per_class([s.value for s in streams], 0.0)
    quality = jnp.stack([per_class([s.quality[t] for s in streams], 1.0) for t in range(3)])
    ttft_slo_s = per_class([s.ttft_slo_s for s in streams], 10.0)
    full_power_usd = deployment.num_gpus * (
        deployment.usd_per_gpu_s + deployment.max_w * deployment.usd_per_joule
    )
    objective = spec.objective
    return ServeEnv(
        table=latency,
        deployment=deployment,
        workload=Workload(
            classes=classes,
            regimes=regimes,
            cycle_period_s=jnp.float32(spec.cycle_period_s),
            **replay,
        ),
        slo=Slo(ttft_s=ttft_slo_s, tpot_s=per_class([s.tpot_slo_s for s in streams], 1.0)),
        reward=RewardModel(
            value=value,
            quality=quality,
            ttft_slo_s=ttft_slo_s,
            expected_value=jnp.float32(expected_rps * spec.window_s * float(np.dot(mix, value))),
            expected_requests_per_s=jnp.float32(expected_rps),
            memory_limit_gib=jnp.float32(objective.memory_limit_gib),
            usd_scale=full_power_usd * spec.window_s,
            throughput_weight=jnp.float32(objective.throughput_weight),
            latency_weight=jnp.float32(objective.latency_weight),
            slo_weight=jnp.float32(objective.slo_weight),
            cost_weight=jnp.float32(objective.cost_weight),
            memory_weight=jnp.float32(objective.memory_weight),
        ),
        knob_active=jnp.asarray([knob in spec.knobs for knob in KNOBS]),
        locked=make_action(**spec.locked),
        horizon=jnp.int32(spec.horizon),
        randomisation=jnp.float32(spec.randomisation),
        name=spec.name,
        window_s=spec.window_s,
        ticks=spec.ticks,
    )


def stack(envs: Sequence[ServeEnv]) -> ServeEnv:
    """Several environments as one with a leading axis, for ``jax.vmap``.

        envs = jaxserve.stack([make("bursty_workload"), make("static_workload", hardware=...)])
        states, _ = jax.vmap(lambda env, key: env.reset(key))(envs, keys)

    Raises:
      InputError: there is none, something else is among them, or they differ in window_s, ticks or
        the kind of traffic.
    """
    if not envs:
        raise InputError("there are 0 environments to stack; at least 1 is needed")
    for env in envs:
        if not isinstance(env, ServeEnv):
            raise InputError(f"stack got {env!r:.60}; it takes environments that make built")
    names = dict.fromkeys(env.name for env in envs)
    renamed = [dataclasses.replace(env, name="+".join(names)) for env in envs]
    layouts = {
        (jax.tree.structure(env), tuple(leaf.shape for leaf in jax.tree.leaves(env)))
        for env in renamed
    }
    if len(layouts) > 1:
        raise InputError(
            f"environments {', '.join(names)} cannot be stacked; they must agree in window_s and "
            "ticks, and either all or none must replay traces of one length"
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *renamed)


def _path(argument: str, value: object) -> str | Path:
    if not isinstance(value, str | Path):
        raise InputError(f"{argument} is {value!r:.60}; it must be a name or a path")
    return value


def _load_table(name_or_path: str | Path, spec: TaskSpec, gpu: str) -> LatencyTable:
    """The table, if it is one of the task's model on this GPU."""
    file = read_table_file(name_or_path)
    wanted = {
        "model": spec.model,
        "hardware": gpu,
        "tensor_parallel": spec.deployment.tensor_parallel,
    }
    for field, value in wanted.items():
        found = getattr(file.metadata, field)
        if found != value:
            raise InputError(
                f"table {name_or_path} has {field} {found!r}; task {spec.name} needs {value!r}"
            )
    return latency_table(file)


def _classes(spec: TaskSpec) -> tuple[TrafficClasses, list[int]]:
    """The padded palette and, for each real class, the stream it belongs to."""
    owner: list[int] = []
    prompts, outputs, priorities, profiles = [], [], [], []
    for index, stream in enumerate(spec.streams):
        for part in stream.prompt.split_evenly(stream.bins):
            owner.append(index)
            prompts.append(part.lengths.table())
            outputs.append(stream.output.table())
            priorities.append(stream.priority)
            profiles.append(tokens_per_step(stream.acceptance))
    missing = CLASS_COUNT - len(owner)
    prompts += [np.full_like(prompts[0], 64.0)] * missing
    outputs += [np.full_like(outputs[0], 64.0)] * missing
    priorities += [2] * missing
    profiles += [np.ones(9)] * missing
    prompt_table, output_table = np.stack(prompts), np.stack(outputs)
    classes = TrafficClasses(
        prompt_tokens=_table_mean(prompt_table),
        prompt_floor=jnp.asarray(prompt_table[:, 0], jnp.float32) / _table_mean(prompt_table),
        prompt_spread=jnp.sqrt(jnp.maximum(_relative_square(prompt_table) - 1.0, 0.0)),
        output_tokens=_table_mean(output_table),
        delay_weight=_delay_weight(output_table),
        output_growth=_running_growth(output_table),
        priority=jnp.asarray(priorities, jnp.int32),
        tokens_per_step=jnp.asarray(np.stack(profiles), jnp.float32),
        prompt_quantiles=jnp.asarray(prompt_table, jnp.float32),
        output_quantiles=jnp.asarray(output_table, jnp.float32),
    )
    return classes, owner


def _table_mean(table: np.ndarray) -> jnp.ndarray:
    return jnp.asarray(np.mean((table[:, 1:] + table[:, :-1]) / 2.0, axis=1), jnp.float32)


def _relative_square(table: np.ndarray) -> jnp.ndarray:
    """E[x^2] / E[x]^2 of the lengths."""
    low, high = table[:, :-1], table[:, 1:]
    mean = np.mean((low + high) / 2.0, axis=1)
    second = np.mean((low**2 + low * high + high**2) / 3.0, axis=1)
    return jnp.asarray(second / mean**2, jnp.float32)


def _delay_weight(table: np.ndarray) -> jnp.ndarray:
    """E[n] E[1/n] of the tokens after the first, of requests that have any."""
    quantiles = np.linspace(0.0, 1.0, 641)[1::2]
    knots = np.linspace(0.0, 1.0, table.shape[1])
    after_first = np.stack([np.interp(quantiles, knots, row) for row in table]) - 1.0
    after_first = np.maximum(after_first, 1.0)
    return jnp.asarray(after_first.mean(axis=1) * (1.0 / after_first).mean(axis=1), jnp.float32)


def _running_growth(table: np.ndarray) -> jnp.ndarray:
    """E[o^2] / (2 E[o]^2): how far a request that is seen running has got, in mean outputs.

    A running request is seen in proportion to its length (inspection paradox), half-way through
    on average.
    """
    return _relative_square(table) / 2.0


def _regimes(spec: TaskSpec, owner: list[int]) -> Regimes:
    names = [stream.name for stream in spec.streams]
    bins = np.array([spec.streams[i].bins for i in owner], float)
    rows = [spec.regimes[i % len(spec.regimes)] for i in range(REGIME_COUNT)]
    mix = np.zeros((REGIME_COUNT, CLASS_COUNT))
    for g, regime in enumerate(rows):
        share = np.array([regime.mix.get(names[i], 0.0) for i in owner])
        mix[g, : len(owner)] = share / bins

    def vector(values: ArrayLike) -> jnp.ndarray:
        return jnp.asarray(values, jnp.float32)

    return Regimes(
        rate_rps=vector([r.rate_rps for r in rows]),
        class_mix=vector(mix),
        dwell_s=vector([r.dwell_s for r in rows]),
        burst_multiplier=vector([r.burst_multiplier for r in rows]),
        burst_start=vector([r.burst_start_per_s for r in rows]),
        burst_stop=vector([r.burst_stop_per_s for r in rows]),
        cycle_amplitude=vector([r.cycle_amplitude for r in rows]),
        acceptance_scale=vector([r.acceptance_scale for r in rows]),
    )


def _expected_traffic(regimes: Regimes) -> tuple[float, np.ndarray]:
    """Mean arrival rate over the traffic (requests per second) and the mean class mix."""
    start, stop = np.asarray(regimes.burst_start), np.asarray(regimes.burst_stop)
    bursting = start / (start + stop)
    extra = np.mean(np.asarray(regimes.burst_multiplier), axis=1) - 1.0
    dwell = np.mean(np.asarray(regimes.dwell_s), axis=1)
    rate = np.asarray(regimes.rate_rps) * (1.0 + bursting * extra)
    by_class = np.sum((dwell * rate)[:, None] * np.asarray(regimes.class_mix), axis=0)
    total = float(np.sum(dwell * rate))
    return total / float(np.sum(dwell)), by_class / total
