"""Episode keys by split: train, validation and test seeds can never meet.

Each split has a root key of its own, so seed 7 of one split and seed 7 of another start different
episodes by construction, not by convention.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxserve.errors import InputError

_SPLIT_ROOTS = {"train": 0x7472_6169, "validation": 0x7661_6C69, "test": 0x7465_7374}
SPLITS = tuple(_SPLIT_ROOTS)
MAX_SEED = 2**31 - 1


def episode_key(seed: int, split: str = "train") -> jax.Array:
    """Typed key of one episode.

    Raises:
      InputError: unknown split, or a seed that is no whole number from 0 to 2**31 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InputError(f"seed is {seed!r}; it must be a whole number from 0 to {MAX_SEED}")
    return jax.random.fold_in(_root(split), seed)


def episode_keys(count: int, split: str = "train", first: int = 0) -> jax.Array:
    """Keys of the seeds ``first`` to ``first + count - 1``, shape (count,)."""
    fold = jax.vmap(lambda seed: jax.random.fold_in(_root(split), seed))
    return fold(jnp.arange(first, first + count))


def _root(split: str) -> jax.Array:
    if split not in _SPLIT_ROOTS:
        raise InputError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    return jax.random.key(_SPLIT_ROOTS[split])
