"""Rewards on a scale that makes values easy to learn, whatever the task pays."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.agents.network import Normaliser


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
        """Before any reward."""
        return cls(Normaliser.create(1), Normaliser.create(1), jnp.zeros(environments))

    def updated(self, rewards: jax.Array, discount: Any) -> RewardScale:
        """With the rewards float32[T, N] of a rollout."""

        def window(latest: jax.Array, reward: jax.Array) -> tuple[jax.Array, jax.Array]:
            latest = discount * latest + reward
            return latest, latest

        known = self.rewards.updated(rewards[..., None])
        latest, sums = jax.lax.scan(window, self.latest, rewards - known.mean)
        return RewardScale(known, self.sums.updated(sums[..., None]), latest)

    def __call__(self, rewards: jax.Array) -> jax.Array:
        """Rewards of any shape, scaled."""
        return (rewards - self.rewards.mean) * jax.lax.rsqrt(self.sums.variance + 1e-12)
