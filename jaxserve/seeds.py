"""Keys: of episodes, by split and seed, and of the policies that play them.

Each split has a root key of its own, so seed 7 of one split and seed 7 of another start different
episodes by construction, not by convention.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxserve import checks

_SPLIT_ROOTS = {"train": 0x7472_6169, "validation": 0x7661_6C69, "test": 0x7465_7374}
SPLITS = tuple(_SPLIT_ROOTS)
MAX_SEED = 2**31 - 1
_POLICY_STREAM = 0x706F_6C69


def episode_key(seed: int, split: str = "train") -> jax.Array:
    """Typed key of one episode.

    Raises:
      InputError: unknown split, or a seed that is no whole number from 0 to 2**31 - 1.
    """
    return jax.random.fold_in(_root(split), checks.whole("seed", seed, 0, MAX_SEED))


def episode_keys(count: int, split: str = "train", first: int = 0) -> jax.Array:
    """Keys of the seeds ``first`` to ``first + count - 1``, shape (count,).

    Raises:
      InputError: as ``episode_key``; also a count that runs past the last seed.
    """
    first = checks.whole("first seed", first, 0, MAX_SEED)
    count = checks.whole("count of seeds", count, 0, MAX_SEED + 1 - first)
    return _keys(split, first + jnp.arange(count))


def random_episode_keys(key: jax.Array, count: int, split: str = "train") -> jax.Array:
    """Keys of ``count`` random seeds of a split, shape (count,); usable under ``jax.jit``.

    Raises:
      InputError: unknown split.
    """
    return _keys(split, jax.random.randint(key, (count,), 0, MAX_SEED))


def policy_key(episode: jax.Array, window: jax.Array | int) -> jax.Array:
    """The key that a policy draws a window's action from, wherever it plays the episode.

    Args:
      episode: typed key of the episode. The values that ``ServeEnv.reset`` derives from it are
        independent of the result.
      window: int32, windows played before this one.
    """
    return jax.random.fold_in(jax.random.fold_in(episode, _POLICY_STREAM), window)


def _keys(split: str, seeds: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(_root(split), seeds)


def _root(split: str) -> jax.Array:
    return jax.random.key(_SPLIT_ROOTS[checks.one_of("split", split, SPLITS)])
