"""A task's streams and regimes as the arrays that the simulator draws traffic from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.arrays.convert import on_device
from jaxserve.datafiles import load_json
from jaxserve.fields import MAX_DEPTH
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.sim.traffic.demand import Demand
from jaxserve.sim.traffic.output_ages import output_ages
from jaxserve.sim.traffic.workload import Regimes, TrafficClasses
from jaxserve.tasks.spec import CLASS_COUNT, REGIME_COUNT, TaskSpec

_STEADY = {
    "rate_rps": 1.0,
    "cosine": [0.0] * 3,
    "sine": [0.0] * 3,
    "deviation": [0.0] * 2,
    "time_s": [1.0] * 2,
    "excess_dispersion": 0.0,
}
"""A stream whose rate is the same at all hours."""


def traffic_classes(spec: TaskSpec) -> tuple[TrafficClasses, list[int]]:
    """The palette, padded to F = ``CLASS_COUNT``, and the index of each real class's stream."""
    owner: list[int] = []
    prompts, outputs, priorities, profiles = [], [], [], []
    for index, stream in enumerate(spec.streams):
        for prompt in stream.prompt.split_evenly(stream.bins):
            owner.append(index)
            prompts.append(prompt.table())
            outputs.append(stream.output.table())
            priorities.append(stream.priority)
            profiles.append(tokens_per_step(stream.acceptance))
    missing = CLASS_COUNT - len(owner)
    prompts += [np.full_like(prompts[0], 64.0)] * missing
    outputs += [np.full_like(outputs[0], 64.0)] * missing
    # No group of its own: requests of one priority are one line, with or without routing.
    priorities += [max(priorities)] * missing
    profiles += [np.ones(MAX_DEPTH + 1)] * missing
    prompt_table, output_table = np.stack(prompts), np.stack(outputs)
    mean_prompt = _table_mean(prompt_table)
    prompt_spread = np.sqrt(np.maximum(_relative_square(prompt_table) - np.float32(1.0), 0.0))
    classes = TrafficClasses(
        prompt_tokens=on_device(mean_prompt),
        prompt_floor=on_device(prompt_table[:, 0].astype(np.float32) / mean_prompt),
        prompt_spread=on_device(prompt_spread),
        output_tokens=on_device(_table_mean(output_table)),
        delay_weight=on_device(_delay_weight(output_table)),
        output_growth=on_device(_running_growth(output_table)),
        priority=on_device(priorities, np.int32),
        tokens_per_step=on_device(np.stack(profiles)),
        prompt_quantiles=on_device(prompt_table),
        output_quantiles=on_device(output_table),
        output_ages=output_ages(output_table, spec.output_ages),
    )
    return classes, owner


def traffic_regimes(spec: TaskSpec, owner: list[int]) -> Regimes:
    """The G = ``REGIME_COUNT`` regimes, repeated where the task has fewer.

    Args:
      owner: index of each class's stream, from ``traffic_classes``; the bins of a stream have
        equal shares of it.
    """
    names = [stream.name for stream in spec.streams]
    bins = np.array([spec.streams[i].bins for i in owner], float)
    rows = [spec.regimes[i % len(spec.regimes)] for i in range(REGIME_COUNT)]
    mix = np.zeros((REGIME_COUNT, CLASS_COUNT))
    for g, regime in enumerate(rows):
        share = np.array([regime.mix.get(names[i], 0.0) for i in owner])
        mix[g, : len(owner)] = share / bins

    return Regimes(
        rate_rps=on_device([r.rate_rps for r in rows]),
        class_mix=on_device(mix),
        dwell_s=on_device([r.dwell_s for r in rows]),
        burst_multiplier=on_device([r.burst_multiplier for r in rows]),
        burst_start=on_device([r.burst_start_per_s for r in rows]),
        burst_stop=on_device([r.burst_stop_per_s for r in rows]),
        cycle_amplitude=on_device([r.cycle_amplitude for r in rows]),
        acceptance_scale=on_device([r.acceptance_scale for r in rows]),
    )


def traffic_demand(spec: TaskSpec, owner: list[int]) -> Demand | None:
    """The fitted demand of the task's streams; streams that follow none are steady.

    A fleet that serves a part of the fitted users meets less of their burstiness: requests that are
    left out at random take a share of the excess dispersion with them, and several groups of users
    of the same kind add none.

    Args:
      owner: index of each class's stream, from ``traffic_classes``.
    """
    if spec.demand is None:
        return None
    fitted = load_json(f"demand/{spec.demand.name}.json")["streams"]
    rows = [fitted.get(spec.demand.streams.get(s.name, ""), _STEADY) for s in spec.streams]
    regime = spec.regimes[0]
    shares = [
        min(regime.rate_rps * regime.mix.get(stream.name, 0.0) / row["rate_rps"], 1.0)
        for stream, row in zip(spec.streams, rows, strict=True)
    ]
    padded = owner + [0] * (CLASS_COUNT - len(owner))
    return Demand(
        cosine=on_device([row["cosine"] for row in rows]),
        sine=on_device([row["sine"] for row in rows]),
        deviation=on_device([row["deviation"] for row in rows]),
        time_s=on_device([row["time_s"] for row in rows]),
        log_mean=on_device([log_mean_factor(row) for row in rows]),
        excess=on_device(
            [row["excess_dispersion"] * share for row, share in zip(rows, shares, strict=True)]
        ),
        stream=on_device(padded, np.int32),
    )


def log_mean_factor(row: Mapping[str, Any]) -> float:
    """Logarithm of the mean factor of a stream of ``data/demand`` over days and drifts."""
    angle = 2.0 * np.pi * np.outer(np.arange(1440) / 1440, 1 + np.arange(len(row["cosine"])))
    profile = np.cos(angle) @ row["cosine"] + np.sin(angle) @ row["sine"]
    variance = np.square(row["deviation"]).sum()
    return float(np.log(np.exp(profile).mean()) + 0.5 * variance)


def stream_classes(spec: TaskSpec) -> dict[str, slice]:
    """Traffic classes that each stream of a task is split into, by the stream's name.

    All classes are of a task's only stream, also those that a trace has in its place.
    """
    if len(spec.streams) == 1:
        return {spec.streams[0].name: slice(None)}
    ends = np.cumsum([stream.bins for stream in spec.streams]).tolist()
    return {
        stream.name: slice(end - stream.bins, end)
        for stream, end in zip(spec.streams, ends, strict=True)
    }


def expected_traffic(regimes: Regimes, window_s: float) -> tuple[float, np.ndarray]:
    """Mean arrival rate over the traffic, requests per second, and the mean class mix, [F].

    Each regime counts with the share of windows that its bursts have in a long stay. A stay begins
    without a burst, so where stays last few windows there are somewhat fewer.

    Args:
      window_s: seconds per window; bursts start and stop between windows.
    """
    start, stop = (
        np.minimum(np.asarray(per_s) * window_s, 1.0)
        for per_s in (regimes.burst_start, regimes.burst_stop)
    )
    bursting = start / (start + stop)
    extra = np.mean(np.asarray(regimes.burst_multiplier), axis=1) - 1.0
    dwell = np.mean(np.asarray(regimes.dwell_s), axis=1)
    rate = np.asarray(regimes.rate_rps) * (1.0 + bursting * extra)
    by_class = np.sum((dwell * rate)[:, None] * np.asarray(regimes.class_mix), axis=0)
    total = float(np.sum(dwell * rate))
    return total / float(np.sum(dwell)), by_class / total


def longest_mean_tokens(classes: TrafficClasses) -> float:
    """Longest prompt or context, in the mean, that the simulator asks times of, tokens.

    Of prompts it is the mean by tokens, of contexts that of sequences that run.
    """
    prompt = np.asarray(classes.prompt_tokens)
    by_tokens = prompt * (1.0 + np.asarray(classes.prompt_spread) ** 2)
    context = prompt + np.asarray(classes.output_tokens) * np.asarray(classes.output_growth)
    return float(np.maximum(by_tokens, context).max())


def _table_mean(table: np.ndarray) -> NDArray[np.float32]:
    return np.mean((table[:, 1:] + table[:, :-1]) / 2.0, axis=1).astype(np.float32)


def _relative_square(table: np.ndarray) -> NDArray[np.float32]:
    """E[x^2] / E[x]^2 of the lengths."""
    low, high = table[:, :-1], table[:, 1:]
    mean = np.mean((low + high) / 2.0, axis=1)
    second = np.mean((low**2 + low * high + high**2) / 3.0, axis=1)
    return (second / mean**2).astype(np.float32)


def _delay_weight(table: np.ndarray) -> NDArray[np.float64]:
    """E[n] E[1/n] of the tokens after the first, of requests that have any."""
    quantiles = np.linspace(0.0, 1.0, 641)[1::2]
    knots = np.linspace(0.0, 1.0, table.shape[1])
    after_first = np.stack([np.interp(quantiles, knots, row) for row in table]) - 1.0
    after_first = np.maximum(after_first, 1.0)
    return after_first.mean(axis=1) * (1.0 / after_first).mean(axis=1)


def _running_growth(table: np.ndarray) -> NDArray[np.float32]:
    """E[o^2] / (2 E[o]^2): mean progress of a request that is seen running, in mean outputs.

    A running request is seen in proportion to its length (inspection paradox), half-way through
    on average.
    """
    return _relative_square(table) / np.float32(2.0)
