"""Hyper-parameters of proximal policy optimisation."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.types import Replaceable


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PPOConfig(Replaceable):
    """Sizes are static; numbers are leaves, so that they can be batched."""

    learning_rate: Any = 1e-3
    """step size of Adam in the first update."""
    learning_rate_end: Any = 0.05
    """share of it that is left at the end, after falling linearly."""
    discount: Any = 0.97
    """discount per window."""
    gae_lambda: Any = 0.9
    clip: Any = 0.2
    entropy_weight: Any = 0.03
    """weight of the entropy in the first update, per nat."""
    entropy_weight_end: Any = 0.05
    """share of it that is left at the end, after falling linearly."""
    value_weight: Any = 0.5
    max_gradient: Any = 0.5
    """norm at which gradients are clipped."""
    reward_scale: Any = 1.0
    """factor on rewards in the first update, beyond the scale that gives returns unit variance."""
    reward_scale_end: Any = 1.0
    """share of it that is left at the end, after changing linearly."""
    environments: int = dataclasses.field(default=1024, metadata={"static": True})
    rollout_windows: int = dataclasses.field(default=25, metadata={"static": True})
    """must divide the task's horizon."""
    updates: int = dataclasses.field(default=200, metadata={"static": True})
    epochs: int = dataclasses.field(default=2, metadata={"static": True})
    minibatches: int = dataclasses.field(default=8, metadata={"static": True})
    """must divide the environments of a device."""
    traffic_group: int = dataclasses.field(default=1, metadata={"static": True})
    """environments that share an episode's traffic; above 1, the mean over them is the baseline of
    each window's advantage (input-dependent baselines, Mao et al. 2019). Must divide the
    environments of a device."""
    width: int = dataclasses.field(default=64, metadata={"static": True})
    recurrent: bool = dataclasses.field(default=False, metadata={"static": True})

    @property
    def windows(self) -> int:
        """Windows that an update plays."""
        return self.environments * self.rollout_windows

    def scheduled(self, name: str, update: jax.Array) -> Any:
        """The value that a number with an end has in an update."""
        start, end = getattr(self, name), getattr(self, f"{name}_end")
        left = jnp.maximum(1.0 - update / self.updates, 0.0)
        return start * (end + (1.0 - end) * left)
