"""Episode keys by split: train, validation and test seeds do not meet.

Each split has a root key of its own, so seed 7 of one split and seed 7 of another start different
episodes by construction, not by convention.
"""

from __future__ import annotations

from numbers import Integral

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
    return jax.random.fold_in(_root(split), _whole("seed", seed, MAX_SEED))


def episode_keys(count: int, split: str = "train", first: int = 0) -> jax.Array:
    """Keys of the seeds ``first`` to ``first + count - 1``, shape (count,).

    Raises:
      InputError: as ``episode_key``; also a count that runs past the last seed.
    """
    first = _whole("first seed", first, MAX_SEED)
    count = _whole("count of seeds", count, MAX_SEED + 1 - first)
    return _keys(split, first + jnp.arange(count))


def random_episode_keys(key: jax.Array, count: int, split: str = "train") -> jax.Array:
    """Keys of ``count`` random seeds of a split, shape (count,); usable under ``jax.jit``.

    Raises:
      InputError: unknown split.
    """
    return _keys(split, jax.random.randint(key, (count,), 0, MAX_SEED))


def _keys(split: str, seeds: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(_root(split), seeds)


def _whole(name: str, value: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= value <= high:
        raise InputError(f"{name} is {value!r}; it must be a whole number from 0 to {high}")
    return int(value)


def _root(split: str) -> jax.Array:
    if not isinstance(split, str) or split not in _SPLIT_ROOTS:
        raise InputError(f"split is {split!r}; it must be one of {', '.join(SPLITS)}")
    return jax.random.key(_SPLIT_ROOTS[split])
