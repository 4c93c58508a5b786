"""Returns: the discount of a task, and rewards scaled so that returns have unit variance."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.network import Normaliser
from jaxserve.agents.regimes import regimes_alike
from jaxserve.env import ServeEnv
from jaxserve.spaces import KNOBS, RESTART_KNOBS

QUEUE_DISCOUNT = 0.97
"""Per window: half a minute, which is as long as what a knob does now is felt in a queue."""


def task_discount(env: ServeEnv) -> float:
    """Discount per window with which a change that costs a restart is worth it if it pays off.

    The price of a new tier or split is paid within seconds, and it pays back until the traffic
    changes: a learner has to look ahead for the mean stay in a regime or, under the demand of days,
    for the correlation time of its fastest drift; at most an episode. Tasks without such knobs are
    learnt best with ``QUEUE_DISCOUNT``, the least of all.
    """
    restarting = [KNOBS.index(knob) for knob in RESTART_KNOBS]
    if not np.asarray(env.knob_active)[restarting].any():
        return QUEUE_DISCOUNT
    ahead = float(env.horizon)
    if not regimes_alike(env):
        dwell_s = np.asarray(env.workload.regimes.dwell_s)
        ahead = min(ahead, float(dwell_s.mean()) / env.window_s)
    if env.workload.demand is not None:
        ahead = min(ahead, float(np.min(env.workload.demand.time_s)) / env.window_s)
    return max(1.0 - 1.0 / ahead, QUEUE_DISCOUNT)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RewardScale:
    """Running mean of rewards, and running variance of their discounted sums.

    Rewards above their mean, over the deviation of these sums, are returns of about unit variance
    (the scaling of Engstrom et al. 2020, with the mean taken off). Where an episode ends by its
    horizon only, neither changes which policy is best.
    """

    rewards: Normaliser
    sums: Normaliser
    latest: jax.Array
    """float32[N], discounted sums of the rewards above their mean so far."""

    @classmethod
    def create(cls, environments: int) -> RewardScale:
        """The scale before any reward."""
        return cls(Normaliser.create(1), Normaliser.create(1), jnp.zeros(environments))

    def updated(self, rewards: jax.Array, discount: Any) -> RewardScale:
        """The scale after the rewards float32[T, N] of a rollout."""

        def window(latest: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
            latest = discount * latest + reward
            return latest, latest

        known = self.rewards.updated(rewards[..., None])
        latest, sums = jax.lax.scan(window, self.latest, rewards - known.mean)
        return RewardScale(known, self.sums.updated(sums[..., None]), latest)

    def __call__(self, rewards: jax.Array) -> jax.Array:
        """Rewards of any shape, scaled."""
        return (rewards - self.rewards.mean) * jax.lax.rsqrt(self.sums.variance + 1e-12)
