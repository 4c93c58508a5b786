"""Reward: value of the requests that met their SLOs, less money and memory beyond the limit.

    reward_t = sum_i u_i / V - w_cost cost_t / C - w_mem max(memory_t - limit, 0) / limit
    u_i      = value[class] * quality[tier, class] * 1[TTFT and TPOT inside their SLOs]

credited when the request completes, with V the expected value of a window's arrivals and C the cost
of a window at full power; so it is with throughput and slo weights of 1 and a latency weight of 0.
The last window of an episode also credits the requests in service that are on track: their first
token came in time, and their TPOT so far is inside its limit. Requests that are shed, starved or
still queued at the end earn nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, batch_last
from jaxserve.checks import JsonObject
from jaxserve.types import RewardParts, WindowMetrics

REWARD_CONFIG = {
    "alpha": "throughput_weight",
    "beta": "latency_weight",
    "gamma": "slo_weight",
    "delta": "cost_weight",
}
"""Weights that ``reset(config=...)`` may change for an experiment; grades never follow them."""
MAX_WEIGHT = 1e3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RewardModel:
    """Values, weights and limits of one task."""

    value: jax.Array
    """float32[F], worth of a request of each class."""
    quality: jax.Array
    """float32[3, F], share of that worth that answers of each quantisation tier keep."""
    ttft_slo_s: jax.Array
    """float32[F], scale of the latency term, s."""
    expected_value: jax.Array
    """float32, mean value of a window's arrivals over the task's traffic."""
    expected_requests_per_s: jax.Array
    """float32, mean arrival rate over the task's traffic, requests per second."""
    memory_limit_gib: jax.Array
    """float32, memory of one GPU that may be used without penalty, GiB."""
    usd_scale: jax.Array
    """float32, cost of a window in which every GPU runs at full power, US dollars."""
    throughput_weight: jax.Array
    """float32, weight of the value of all completed requests (alpha)."""
    latency_weight: jax.Array
    """float32, weight of queueing beyond the SLO (beta; 0 in the tasks' own objective)."""
    slo_weight: jax.Array
    """float32, weight of the value lost by requests that missed an SLO (gamma)."""
    cost_weight: jax.Array
    """float32, weight of money relative to the value of a window (delta)."""
    memory_weight: jax.Array
    """float32, weight of the over-limit share of memory relative to the value of a window."""


def reweight(model: RewardModel, config: Mapping[str, Any]) -> RewardModel:
    """The reward with some of the weights ``REWARD_CONFIG`` changed.

    Raises:
      InputError: an unknown name, or a weight that is no number from 0 to ``MAX_WEIGHT``.
    """
    given = JsonObject(config, "config", REWARD_CONFIG)
    weights = {
        REWARD_CONFIG[name]: jnp.float32(given.number(name, 0, MAX_WEIGHT)) for name in given
    }
    return dataclasses.replace(model, **weights)


def compute_reward(
    model: RewardModel, metrics: WindowMetrics, last: bool | jax.Array
) -> RewardParts:
    """The reward of one window and its terms.

    With weights (1, 0, 1, ...) throughput + slo is the value of the requests that met their SLOs
    (goodput in value units). All terms are in units of the expected value per window.

    Args:
      last: bool, the window is the last one of its episode, so that requests on track count as
        completed inside their SLOs.
    """
    return _parts(model, metrics, jnp.asarray(last))


@batch_last
def _parts(model: RewardModel, metrics: WindowMetrics, last: jax.Array) -> RewardParts:
    at_tier = [
        jnp.where(metrics.tier == tier, quality, 0.0) for tier, quality in enumerate(model.quality)
    ]
    worth = model.value * sum(at_tier)
    counted = metrics.completed + jnp.where(last, metrics.on_track, 0.0)
    completed = add_up(worth * counted) / model.expected_value
    missed = add_up(worth * (metrics.completed - metrics.good)) / model.expected_value
    late = add_up(worth * (metrics.first_tokens - metrics.ttft_met)) / model.expected_value
    over = jnp.maximum(metrics.memory_gib - model.memory_limit_gib, 0.0) / model.memory_limit_gib
    throughput = model.throughput_weight * completed
    latency = -model.latency_weight * late
    slo = -model.slo_weight * missed
    cost = -model.cost_weight * metrics.cost_usd / model.usd_scale
    memory = -model.memory_weight * over
    return RewardParts(
        throughput=throughput,
        latency=latency,
        slo=slo,
        cost=cost,
        memory=memory,
        total=throughput + latency + slo + cost + memory,
    )
