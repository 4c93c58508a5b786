"""Reuse tables: tokens that traffic classes find in a prefix cache, looked up under jit."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.convert import on_device
from jaxserve.sim.traffic.reuse import CACHE_TOKENS, cached_tokens
from jaxserve.sim.traffic.trace_classes import ClassMap
from jaxserve.sim.traffic.traces import Trace

_SMALLEST = float(CACHE_TOKENS[0])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ReuseTable:
    """Means over the prompts of F classes, by the GPUs that prefill and the size of their caches.

    A cache that has room for S tokens finds what was used by the last requests with S tokens,
    whatever the rate at which they came: the tables do not depend on time.
    """

    cached_tokens: jax.Array
    """float32[N, F, C], tokens found, for 1 to N GPUs and caches of 0 and ``CACHE_TOKENS``."""
    fresh_square: jax.Array
    """float32[N, F, C], square of the tokens that are left to prefill."""
    product: jax.Array
    """float32[N, F, C], tokens found times those that are left."""
    mostly_found: jax.Array
    """float32[N, F, C], share of the prompts of which more than half is found."""
    mostly_found_fresh: jax.Array
    """float32[N, F, C], tokens that these leave to prefill, as a mean over all prompts."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Found:
    """Tokens that prompts of each class find in caches of one size."""

    cached_tokens: jax.Array
    """float32[F]"""
    fresh_square: jax.Array
    """float32[F]"""
    product: jax.Array
    """float32[F]"""
    mostly_found: jax.Array
    """float32[F]"""
    mostly_found_fresh: jax.Array
    """float32[F]"""


def reuse_table(trace: Trace, classes: ClassMap, num_gpus: int, count: int) -> ReuseTable:
    """Measures the table of a trace with blocks.

    Args:
      classes: of its requests.
      num_gpus: N.
      count: F, at least as many as there are classes; more of them find nothing.
    """
    group = classes.of(trace)
    tables = np.zeros((len(dataclasses.fields(ReuseTable)), num_gpus, count, len(CACHE_TOKENS) + 1))
    for gpus in range(1, num_gpus + 1):
        found = cached_tokens(trace, CACHE_TOKENS, gpus)
        found = np.pad(found, ((0, 0), (1, 0)))
        prompt = trace.prompt_tokens[: len(found), None].astype(np.float64)
        left = prompt - found
        mostly = found > left
        moments = (found, left**2, found * left, mostly, mostly * left)
        for of in range(len(classes)):
            members = group[: len(found)] == of
            if members.any():
                tables[:, gpus - 1, of] = [moment[members].mean(axis=0) for moment in moments]
    return ReuseTable(*(on_device(table) for table in tables))


def look_up(table: ReuseTable, gpus: jax.Array, cache_tokens: jax.Array) -> Found:
    """Tokens found with so many GPUs that prefill, each with a cache of that size.

    Args:
      gpus: int32, whole number from 1 to N (clamped).
      cache_tokens: float32, tokens.
    """
    last = len(CACHE_TOKENS)
    size = jnp.maximum(cache_tokens, 0.0) / _SMALLEST
    position = jnp.where(size < 1.0, size, 1.0 + 2.0 * jnp.log2(jnp.maximum(size, 1.0)))
    position = jnp.minimum(position, float(last))
    low = jnp.minimum(position.astype(jnp.int32), last - 1)
    row = jnp.clip(gpus - 1, 0, table.cached_tokens.shape[0] - 1)

    def interpolated(values: jax.Array) -> jax.Array:
        below, above = values[row, :, low], values[row, :, low + 1]
        return below + (position - low) * (above - below)

    return Found(
        *map(interpolated, (getattr(table, field.name) for field in dataclasses.fields(Found)))
    )
