"""The knob grid that searches, learners and adapters choose from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.spaces import KNOB_FIELDS
from jaxserve.types import ServeAction

KNOB_GRIDS = {name: np.array(knob.grid) for name, knob in KNOB_FIELDS.items()}


def grid_sizes(env: ServeEnv) -> np.ndarray:
    """int[7]: number of values the agent may choose, 1 for knobs that the task locks."""
    num_gpus = float(np.max(env.deployment.num_gpus))
    sizes = [
        sum(value <= knob.highest(num_gpus) for value in knob.grid) for knob in KNOB_FIELDS.values()
    ]
    return np.where(np.asarray(env.knob_active), sizes, 1)


def action_at(indices: jax.Array) -> ServeAction:
    """The action at grid indices int32[..., 7], in the order of ``KNOBS``."""
    return ServeAction(
        **{
            name: jnp.asarray(knob.grid, knob.bound.dtype)[indices[..., place]]
            for place, (name, knob) in enumerate(KNOB_FIELDS.items())
        }
    )


def nearest_indices(action: ServeAction) -> jax.Array:
    """int32[7]: the grid point nearest to an action of scalars (some knobs count in octaves)."""
    return jnp.stack([nearest_index(name, getattr(action, name)) for name in KNOB_FIELDS])


def nearest_index(name: str, value: jax.Array) -> jax.Array:
    """int32: the grid point nearest to a value of one knob."""
    knob = KNOB_FIELDS[name]
    grid = jnp.asarray(knob.grid, jnp.float32)
    distance = jnp.log(grid / value) if knob.octaves else grid - value
    return jnp.argmin(jnp.abs(distance)).astype(jnp.int32)
