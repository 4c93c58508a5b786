"""Hyper-parameters of proximal policy optimisation."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class PPOConfig:
    """Sizes are static; numbers are leaves, so that they can be batched."""

    learning_rate: Any = 1e-3
    """at the start."""
    learning_rate_end: Any = 0.05
    """share of it that is left at the end, after falling linearly."""
    discount: Any = 0.97
    """per window."""
    gae_lambda: Any = 0.9
    clip: Any = 0.2
    entropy_weight: Any = 0.03
    """at the start, per nat."""
    entropy_weight_end: Any = 0.05
    """share of it that is left at the end, after falling linearly."""
    value_weight: Any = 0.5
    max_gradient: Any = 0.5
    """norm at which gradients are clipped."""
    reward_scale: Any = 1.0
    """at the start, on top of the scale that gives returns unit variance."""
    reward_scale_end: Any = 1.0
    """share of it that is left at the end, after changing linearly."""
    environments: int = flax.struct.field(pytree_node=False, default=1024)
    rollout_windows: int = flax.struct.field(pytree_node=False, default=25)
    """must divide the task's horizon."""
    updates: int = flax.struct.field(pytree_node=False, default=200)
    epochs: int = flax.struct.field(pytree_node=False, default=2)
    minibatches: int = flax.struct.field(pytree_node=False, default=8)
    """must divide the environments of a device."""
    traffic_group: int = flax.struct.field(pytree_node=False, default=1)
    """environments that share an episode's traffic; above 1, the mean over them is the baseline of
    each window's advantage (input-dependent baselines, Mao et al. 2019). Must divide the
    environments of a device."""
    width: int = flax.struct.field(pytree_node=False, default=64)
    recurrent: bool = flax.struct.field(pytree_node=False, default=False)

    @property
    def windows(self) -> int:
        """Windows that an update plays."""
        return self.environments * self.rollout_windows

    def scheduled(self, name: str, update: jax.Array) -> Any:
        """The value that a number with an end has in an update."""
        start, end = getattr(self, name), getattr(self, f"{name}_end")
        left = jnp.maximum(1.0 - update / self.updates, 0.0)
        return start * (end + (1.0 - end) * left)
