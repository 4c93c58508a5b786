"""The requests behind an episode's arrival counts, one by one.

The fast simulator sees how many requests of a class arrive in a tick. Here each of them gets an
arrival time inside that tick and lengths of its own, so that the reference simulator faces the same
episode: the same counts per tick and class, from the same key.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sim.reference.request import Request
from jaxserve.sim.traffic.workload import (
    Arrivals,
    TrafficClasses,
    Workload,
    WorkloadState,
    draw_arrivals,
)


def roll_traffic(
    workload: Workload, state: WorkloadState, windows: int, ticks: int, window_s: float
) -> Arrivals:
    """The traffic of an episode that starts in ``state``, whatever its actions are.

    Args:
      windows: length of the episode (static).
      ticks, window_s: see ``draw_arrivals`` (static).

    Returns:
      arrivals with leaves stacked along the windows, counts float32[windows, ticks, F].
    """

    def window(state: WorkloadState, index: jax.Array) -> tuple[WorkloadState, Arrivals]:
        return draw_arrivals(workload, state, index, ticks, window_s)

    return jax.lax.scan(window, state, jnp.arange(windows))[1]


def episode_requests(
    traffic: Arrivals, classes: TrafficClasses, key: jax.Array, window_s: float
) -> list[Request]:
    """The requests of an episode in order of arrival, with ids from 0.

    Arrival times are uniform inside a tick, which is exact for Poisson arrivals. Lengths are drawn
    from the quantile tables of the class, prompt and output independently of each other.

    Args:
      traffic: stacked along W windows as ``roll_traffic`` returns it.
      classes: the palette the counts are of.
      key: typed key of the episode; consumed by a NumPy generator.
      window_s: seconds per window.
    """
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
    _, ticks, class_count = traffic.counts.shape
    scales = np.asarray(traffic.acceptance_scale, np.float64)
    counts = np.rint(np.asarray(traffic.counts)).astype(np.int64).ravel()
    cell = np.repeat(np.arange(counts.size), counts)
    group = cell % class_count
    tick_s = window_s / ticks
    arrival_s = (cell // class_count + rng.random(cell.size)) * tick_s
    prompts = _sample_lengths(classes.prompt_quantiles, group, rng)
    outputs = _sample_lengths(classes.output_quantiles, group, rng)
    priority = np.asarray(classes.priority)
    profile = np.asarray(classes.tokens_per_step, np.float64)
    window = cell // (class_count * ticks)
    acceptance: dict[tuple[float, int], np.ndarray] = {}
    requests = []
    for number, index in enumerate(np.argsort(arrival_s, kind="stable")):
        traffic_class = int(group[index])
        scale = float(scales[window[index]])
        if (scale, traffic_class) not in acceptance:
            acceptance[scale, traffic_class] = 1.0 + scale * (profile[traffic_class] - 1.0)
        requests.append(
            Request(
                id=number,
                arrival_s=float(arrival_s[index]),
                prompt_tokens=int(prompts[index]),
                output_tokens=int(outputs[index]),
                traffic_class=traffic_class,
                priority=int(priority[traffic_class]),
                acceptance=acceptance[scale, traffic_class],
            )
        )
    return requests


def _sample_lengths(
    quantiles: jax.Array, group: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """int64[n]: a length of each request's class, by inversion of its quantile table.

    The n requests of a class draw one quantile from each n-th of its distribution, in random order.
    An episode's mean length is then that of the class, which the fast simulator takes for granted,
    and a comparison does not carry the sampling error of a few hundred heavy-tailed lengths.
    """
    table = np.asarray(quantiles, np.float64)
    quantile = np.empty(group.size)
    for index in range(len(table)):
        members = np.flatnonzero(group == index)
        strata = rng.permutation(members.size) + rng.random(members.size)
        quantile[members] = strata / max(members.size, 1)
    position = quantile * (table.shape[1] - 1)
    low = np.minimum(position.astype(np.int64), table.shape[1] - 2)
    fraction = position - low
    values = table[group, low] * (1.0 - fraction) + table[group, low + 1] * fraction
    return np.maximum(np.rint(values), 1.0).astype(np.int64)
