"""Prefill work of prompts: tokens that a prefix cache does not spare and their seconds, and the KV
that prompts hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.batching import add_up
from jaxserve.sim.fast.tick_state import TINY, PromptParts, PromptWork, Queues
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
_LONG, _LONGER = 4096.0, 8192.0  # tokens; their prefill times give attention's slope b


def prompt_work(classes: TrafficClasses, found: Found | None) -> PromptWork:
    """Moments of the tokens that the prompts of each class leave to prefill.

    Args:
      classes: traffic classes.
      found: tokens found in the prefix cache; None without a cache.
    """
    if found is None:
        return PromptWork(
            tokens=classes.prompt_tokens,
            floor=classes.prompt_floor,
            spread=classes.prompt_spread,
        )
    # fresh = prompt - cached; the relative variance is E[fresh^2] / E[fresh]^2 - 1.
    fresh = jnp.maximum(classes.prompt_tokens - found.cached_tokens, 1.0)
    square = found.fresh_square / fresh**2
    spares = found.cached_tokens > 0.5
    return PromptWork(
        tokens=fresh,
        # A prompt may be found whole but for its last block.
        floor=jnp.where(spares, 0.0, classes.prompt_floor),
        spread=jnp.where(spares, jnp.sqrt(jnp.maximum(square - 1.0, 0.0)), classes.prompt_spread),
        behind_tokens=jnp.where(spares, found.product / fresh, 0.0),
    )


def found_prefixes(
    table: ReuseTable, queues: Queues, gpus: jax.Array, decode_gpus: jax.Array, pool: jax.Array
) -> tuple[Found, jax.Array]:
    """Tokens that prompts find in the caches, and those that running requests share.

    The pool keeps the most recently used tokens (LRU), whether their request still runs or not, and
    running requests used theirs last. So a block is found if its reuse distance, the tokens used
    since its last use, is within the pool (Mattson et al., IBM Systems Journal 9, 1970), and shared
    with a running request if it is within what running requests hold.

    Args:
      table: reuse curves of the trace by class and number of GPUs.
      queues: running sequences; their KV tokens are float32[F].
      gpus: int32, GPUs that prefill.
      decode_gpus: float32, GPUs that decode.
      pool: float32, KV tokens that a GPU has room for.

    Returns:
      tokens found, and float32[F], KV tokens of a running request that others hold as well.
    """
    held = add_up(queues.context + BLOCK_SLACK_TOKENS * queues.running)
    shared = look_up(table, gpus, held / decode_gpus).cached_tokens
    # Shared tokens count once for each request that holds them: one step towards distinct ones.
    distinct = held - add_up(queues.running * shared)
    shared = look_up(table, gpus, distinct / decode_gpus).cached_tokens
    return look_up(table, gpus, pool), shared


def added_rows(table: WindowTable, work: PromptWork) -> jax.Array:
    """float32[B, F]: seconds that a token left to prefill adds to the iterations of a decode batch,
    for each batch size of the table's grid."""
    # Long prompts cost more per token, and they hold most of the tokens: E[n^2] / E[n] is the
    # length of a token's prompt. Attention to cached tokens comes on top: if n tokens take
    # a n + b n^2 seconds, n tokens behind c others take 2 b n c more.
    own = added_s_per_token_rows(table, work.tokens * (1.0 + work.spread**2))
    if work.behind_tokens is None:
        return own
    long, longer = (added_s_per_token_rows(table, jnp.full(1, n)) for n in (_LONG, _LONGER))
    return own + (longer - long) / (_LONGER - _LONG) * 2.0 * work.behind_tokens


def alone_seconds(table: WindowTable, work: PromptWork) -> jax.Array:
    """float32[F], seconds of a prompt's prefill on an idle GPU."""
    # t(n) + b n (2 c + spread^2 n): mean of the quadratic term over prompts behind c cached tokens.
    own = work.tokens * prefill_s_per_token(table, work.tokens)
    if work.behind_tokens is None:
        return own
    uneven = work.spread**2 * work.tokens
    return own + _slope(table) * work.tokens * (2.0 * work.behind_tokens + uneven)


def second_shares(table: WindowTable, work: PromptWork) -> jax.Array:
    """float32[3, F], prefill seconds of three prompts of each class as shares of their mean.

    Attention makes the seconds of long prompts spread more than their tokens.
    """
    # Tokens are lognormal with sigma^2 = log(1 + spread^2), at z = -sqrt(3), 0, sqrt(3).
    deviation = jnp.sqrt(jnp.log1p(work.spread**2))
    tokens = _over_mean(jnp.exp(jnp.asarray(_POINTS, jnp.float32)[:, None] * deviation))
    tokens = work.tokens * tokens
    return _over_mean(_seconds(table, tokens, work.behind_tokens))


def prompt_parts(
    table: WindowTable, classes: TrafficClasses, work: PromptWork, found: Found
) -> PromptParts:
    """Prompts of which most is found and the others, with the moments of both together.

    Args:
      table: iteration times at the window's depth and tier.
      classes: traffic classes.
      work: prefill work with what is found.
      found: tokens found in the prefix cache.
    """
    shares = jnp.stack([found.mostly_found, 1.0 - found.mostly_found])
    fresh = jnp.stack([found.mostly_found_fresh, work.tokens - found.mostly_found_fresh])
    tokens = jnp.maximum(fresh / jnp.maximum(shares, TINY), 1.0)
    # Both parts are spread alike: E[n^2] = sum share mean^2 (1 + spread^2).
    square = work.tokens**2 * (1.0 + work.spread**2)
    spread = square / jnp.maximum(add_up(shares * tokens**2), TINY) - 1.0
    # Prompts of both parts are taken as equally long.
    seconds = _seconds(table, tokens, jnp.maximum(classes.prompt_tokens - tokens, 0.0))
    return PromptParts(
        shares=shares,
        seconds=seconds / jnp.maximum(add_up(shares * seconds), TINY),
        spread=jnp.sqrt(jnp.maximum(spread, 0.0)),
    )


def mean_of_points(values: jax.Array, weights: jax.Array | None = None) -> jax.Array:
    """Mean over a class from ``values`` [Q, ...] of Q prompts; their ``weights`` [Q, ...] are
    ``POINT_WEIGHTS`` of three by default."""
    of = POINT_WEIGHTS if weights is None else weights
    return add_up(jnp.stack([w * value for w, value in zip(of, values, strict=True)]))


def seconds_spread(work: PromptWork) -> jax.Array:
    """float32[F, ...], standard deviation of prefill seconds as a share of the mean; without
    ``work.seconds`` that of the tokens."""
    if work.seconds is None:
        return work.spread
    return jnp.sqrt(mean_of_points((work.seconds - 1.0) ** 2))


def _over_mean(points: jax.Array) -> jax.Array:
    """``points`` [3, ...] as shares of their mean."""
    return points / mean_of_points(points)


def _seconds(table: WindowTable, tokens: jax.Array, behind: jax.Array | None) -> jax.Array:
    """Seconds of a prefill on an idle GPU, shaped as ``tokens``: t(n) + 2 b n c behind c tokens
    that were found."""
    seconds = tokens * prefill_s_per_token(table, tokens)
    return seconds if behind is None else seconds + _slope(table) * 2.0 * tokens * behind


def _slope(table: WindowTable) -> jax.Array:
    """float32: b of t(n) = a n + b n^2 on an idle GPU, from seconds per token of two lengths."""
    long, longer = (
        prefill_added_s_per_token(table, jnp.float32(1.0), jnp.float32(n)) for n in (_LONG, _LONGER)
    )
    return (longer - long) / (_LONGER - _LONG)


def distinct_kv(work: PromptWork, kv: jax.Array, requests: jax.Array) -> jax.Array:
    """float32[F, ...]: KV tokens of ``requests`` float32[F, ...] that have ``kv`` together, where
    tokens that several of them share count once."""
    return kv if work.shared_kv is None else jnp.maximum(kv - work.shared_kv * requests, 0.0)


def prompt_kv(work: PromptWork, classes: TrafficClasses) -> jax.Array:
    """float32[F, ...]: KV tokens of the blocks that a prompt takes."""
    return distinct_kv(work, classes.prompt_tokens, jnp.float32(1.0)) + work.slack_tokens
