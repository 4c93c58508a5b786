"""The knob grid that searches, learners and adapters choose from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.spaces import ACTION_BOUNDS, KNOBS
from jaxserve.types import ServeAction

KNOB_GRIDS: dict[str, np.ndarray] = {
    "batch_cap": np.array([1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512]),
    "kv_budget_fraction": np.array([0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]),
    "speculation_depth": np.arange(9),
    "quantization_tier": np.arange(3),
    "prefill_decode_split": np.arange(8),
    "priority_routing": np.arange(2),
}
"""Values of each knob: log-spaced batch caps, every value of the discrete knobs."""


def grid_sizes(env: ServeEnv) -> np.ndarray:
    """int[6]: number of values the agent may choose, 1 for knobs that the task locks."""
    sizes = np.array([len(KNOB_GRIDS[knob]) for knob in KNOBS])
    sizes[KNOBS.index("prefill_decode_split")] = int(np.max(env.deployment.num_gpus))
    return np.where(np.asarray(env.knob_active), sizes, 1)


def action_at(indices: jax.Array) -> ServeAction:
    """The action at grid indices int32[..., 6], in the order of ``KNOBS``."""
    values = {knob: jnp.asarray(KNOB_GRIDS[knob])[indices[..., i]] for i, knob in enumerate(KNOBS)}
    return ServeAction(
        **{
            knob: value.astype(jnp.int32 if ACTION_BOUNDS[knob].integer else jnp.float32)
            for knob, value in values.items()
        }
    )


def nearest_indices(action: ServeAction) -> jax.Array:
    """int32[6]: the grid point nearest to an action of scalars (batch cap in octaves)."""
    nearest = []
    for knob in KNOBS:
        grid, value = jnp.asarray(KNOB_GRIDS[knob], jnp.float32), getattr(action, knob)
        distance = jnp.log(grid / value) if knob == "batch_cap" else grid - value
        nearest.append(jnp.argmin(jnp.abs(distance)).astype(jnp.int32))
    return jnp.stack(nearest)
