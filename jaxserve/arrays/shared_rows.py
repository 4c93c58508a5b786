"""Constant data that a batch reads by index, and how it survives batching without being copied.

Environments of one batch mostly read the same table at different places. Moving or copying rows to
every environment would cost more than all lookups of a control window; an offset per environment
costs nothing. Where the data itself is batched (hardware differs between environments) the blocks
are laid end to end and the offsets say whose is whose.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedRows:
    """Numbers read at ``offset`` + index."""

    values: jax.Array
    """[M]; or [M, 1] where a trailing batch axis is expected."""
    offset: jax.Array
    """int32[...], where each environment's own numbers begin."""

    def at(self, index: jax.Array) -> jax.Array:
        """``values[offset + index]``; ``index`` broadcasts against ``offset`` and must be in
        range."""
        assert self.values.size == len(self.values), "its own batch axis is merged by unbatch_rows"
        return self.values.reshape(-1).at[self.offset + index].get(mode="promise_in_bounds")


def unbatch_rows(args: Any, in_batched: Any) -> tuple[Any, Any]:
    """Takes the leading batch axis that a ``custom_vmap`` rule sees out of every ``SharedRows``.

    Args:
      args: pytree of the rule's arguments.
      in_batched: the same pytree of bools, whether a leaf has a leading batch axis.

    Returns:
      both, with ``values`` never batched; blocks of batched values follow each other and ``offset``
      counts from the first.
    """

    def is_rows(node: Any) -> bool:
        return isinstance(node, SharedRows)

    def end_to_end(node: Any, batched: Any) -> Any:
        if not is_rows(node) or not batched.values:
            return node
        blocks, size, *trailing = node.values.shape
        offset = node.offset
        if not batched.offset:
            offset = jnp.broadcast_to(offset, (blocks, *offset.shape))
        starts = size * jnp.arange(blocks, dtype=jnp.int32)
        starts = starts.reshape(blocks, *[1] * (offset.ndim - 1))
        return SharedRows(values=node.values.reshape(-1, *trailing), offset=offset + starts)

    def flags(node: Any, batched: Any) -> Any:
        if not is_rows(node):
            return batched
        return SharedRows(values=False, offset=batched.offset or batched.values)  # type: ignore

    return (
        jax.tree.map(end_to_end, args, in_batched, is_leaf=is_rows),
        jax.tree.map(flags, args, in_batched, is_leaf=is_rows),
    )
