"""What prompts leave to prefill once a prefix cache has spared its part, and how long it takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.batching import add_up
from jaxserve.sim.fast.tick_state import PromptWork, Queues
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS
from jaxserve.sim.table.lookup import (
    WindowTable,
    added_s_per_token_rows,
    prefill_added_s_per_token,
    prefill_s_per_token,
)
from jaxserve.sim.traffic.reuse_table import Found, ReuseTable, look_up
from jaxserve.sim.traffic.workload import TrafficClasses

POINT_WEIGHTS = (1.0 / 6.0, 2.0 / 3.0, 1.0 / 6.0)
"""Weights of the three prompts that stand for those of a class: Gauss-Hermite quadrature, exact for
polynomials of degree 5 of a normal variable."""
_POINTS = np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0])
_LONG, _LONGER = 4096.0, 8192.0  # lengths that tell how prefill grows with what is before it


def prompt_work(classes: TrafficClasses, found: Found | None) -> PromptWork:
    """Moments of what is left to prefill of the prompts of each class.

    Args:
      found: in the prefix cache; None where there is none.
    """
    if found is None:
        return PromptWork(
            tokens=classes.prompt_tokens,
            floor=classes.prompt_floor,
            spread=classes.prompt_spread,
        )
    fresh = jnp.maximum(classes.prompt_tokens - found.cached_tokens, 1.0)
    square = found.fresh_square / fresh**2
    spares = found.cached_tokens > 0.5
    return PromptWork(
        tokens=fresh,
        # Any prompt may be found but for its last block.
        floor=jnp.where(spares, 0.0, classes.prompt_floor),
        spread=jnp.where(spares, jnp.sqrt(jnp.maximum(square - 1.0, 0.0)), classes.prompt_spread),
        behind_tokens=jnp.where(spares, found.product / fresh, 0.0),
    )


def found_prefixes(
    table: ReuseTable, queues: Queues, gpus: jax.Array, decode_gpus: jax.Array, pool: jax.Array
) -> tuple[Found, jax.Array]:
    """What prompts find in the caches, and the part of it that running requests hold.

    What was used last is in the pool, whether its request still runs or not: the running requests
    are those that used it most recently. So a prompt finds what as many tokens ago was used as the
    pool has room for, and shares with others what was used as many ago as they hold.

    Args:
      gpus: int32, GPUs that prefill.
      decode_gpus: float32.
      pool: float32, KV tokens that a GPU has room for.

    Returns:
      what they find, and the KV tokens of a running request that others hold, float32[F].
    """
    held = add_up(queues.context + BLOCK_SLACK_TOKENS * queues.running)
    shared = look_up(table, gpus, held / decode_gpus).cached_tokens
    # Held tokens were counted once for each request that shares them.
    distinct = held - add_up(queues.running * shared)
    shared = look_up(table, gpus, distinct / decode_gpus).cached_tokens
    return look_up(table, gpus, pool), shared


def added_rows(table: WindowTable, work: PromptWork) -> jax.Array:
    """float32[B, F], seconds that a token left to prefill adds to the iterations of a decode batch,
    for each batch size of the table's grid.

    Long prompts cost more per token, and they hold most of the tokens. Attention to what was found
    comes on top: if the seconds of n tokens are a n + b n^2, those behind c others take 2 b n c
    more.
    """
    own = added_s_per_token_rows(table, work.tokens * (1.0 + work.spread**2))
    if work.behind_tokens is None:
        return own
    long, longer = (added_s_per_token_rows(table, jnp.full(1, n)) for n in (_LONG, _LONGER))
    return own + (longer - long) / (_LONGER - _LONG) * 2.0 * work.behind_tokens


def alone_seconds(table: WindowTable, work: PromptWork) -> jax.Array:
    """float32[F], seconds of a prompt's prefill on an idle GPU."""
    own = work.tokens * prefill_s_per_token(table, work.tokens)
    if work.behind_tokens is None:
        return own
    uneven = work.spread**2 * work.tokens
    return own + _slope(table) * work.tokens * (2.0 * work.behind_tokens + uneven)


def second_shares(table: WindowTable, work: PromptWork) -> jax.Array:
    """float32[3, F], prefill seconds of three prompts of each class as shares of their mean.

    The tokens of a class are taken as lognormal. Attention makes the seconds of long prompts spread
    more than their tokens.
    """
    deviation = jnp.sqrt(jnp.log1p(work.spread**2))
    tokens = _over_mean(jnp.exp(jnp.asarray(_POINTS, jnp.float32)[:, None] * deviation))
    tokens = work.tokens * tokens
    seconds = tokens * prefill_s_per_token(table, tokens)
    if work.behind_tokens is not None:
        seconds = seconds + _slope(table) * 2.0 * tokens * work.behind_tokens
    return _over_mean(seconds)


def mean_of_points(values: jax.Array) -> jax.Array:
    """Mean over a class of what three of its prompts have, [3, ...]."""
    return add_up(jnp.stack([w * value for w, value in zip(POINT_WEIGHTS, values, strict=True)]))


def seconds_spread(work: PromptWork) -> jax.Array:
    """float32[F, ...], standard deviation of prefill seconds as a share of the mean; that of the
    tokens where ``work`` does not tell."""
    if work.seconds is None:
        return work.spread
    return jnp.sqrt(mean_of_points((work.seconds - 1.0) ** 2))


def _over_mean(points: jax.Array) -> jax.Array:
    return points / mean_of_points(points)


def _slope(table: WindowTable) -> jax.Array:
    """Seconds per token that an idle GPU takes more for each token of the prompt."""
    long, longer = (
        prefill_added_s_per_token(table, jnp.float32(1.0), jnp.float32(n)) for n in (_LONG, _LONGER)
    )
    return (longer - long) / (_LONGER - _LONG)
