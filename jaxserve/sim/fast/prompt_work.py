"""What prompts leave to prefill once a prefix cache has spared its part, and how long it takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

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
    long, longer = (
        prefill_added_s_per_token(table, jnp.float32(1.0), jnp.float32(n)) for n in (_LONG, _LONGER)
    )
    uneven = work.spread**2 * work.tokens
    slope = (longer - long) / (_LONGER - _LONG)
    return own + slope * work.tokens * (2.0 * work.behind_tokens + uneven)
