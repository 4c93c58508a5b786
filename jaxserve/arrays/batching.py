"""Layout of the tick loop for XLA: batch axis last, and stages that fusion cannot cross.

Two facts about XLA's CPU compiler, measured on the tick (batch 4096), decide the form of the code:

- Class and age axes are short (6 and 32). With the batch axis first, as ``jax.vmap`` puts it, loops
  over them do not vectorise. ``batch_last`` moves the batch axis behind them, merges the axes of
  nested ``vmap`` into one, and undoes both on the way out.
- Elementwise fusion recomputes a producer in every consumer, and a chain of sums over classes that
  are broadcast back to classes is recomputed six-fold at every link (a factor of 20 in all).
  ``stage`` puts a conditional around a step, a boundary that fusion respects;
  ``jax.lax.optimization_barrier`` is removed before fusion on this backend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from jaxserve.arrays.shared_rows import unbatch_rows

P = ParamSpec("P")
R = TypeVar("R")


def stage(live: jax.Array, step: Callable[..., Any], *args: Any) -> Any:
    """``step(*args)``, with its results written out once instead of fused into every consumer.

    Args:
      live: bool scalar that is True at run time but unknown to the compiler.
    """
    traced_once = jax.jit(step, inline=True)
    shape = jax.eval_shape(traced_once, *args)

    def zeros(*_: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, shape)

    with jax.named_scope(step.__name__.strip("_<>")):
        return jax.lax.cond(live, traced_once, zeros, *args)


def staged(step: Callable[P, R]) -> Callable[Concatenate[jax.Array, P], R]:
    """Makes ``step`` a stage: callers pass ``live`` before its own arguments, see ``stage``."""

    @functools.wraps(step)
    def run(live: jax.Array, *args: P.args, **kwargs: P.kwargs) -> R:
        assert not kwargs, "a stage takes positional arguments"
        return stage(live, step, *args)

    return run


def add_up(values: jax.Array, axis: int = 0) -> jax.Array:
    """Sum over a short leading axis, unrolled: XLA's CPU reductions over it do not vectorise."""
    return _pairwise(jnp.add, values, axis)


def largest(values: jax.Array, axis: int = 0) -> jax.Array:
    """Maximum over a short leading axis, unrolled likewise."""
    return _pairwise(jnp.maximum, values, axis)


def _pairwise(
    operation: Callable[[jax.Array, jax.Array], jax.Array], values: jax.Array, axis: int
) -> jax.Array:
    """Combines the slices as a balanced tree, whose operations need not wait for each other."""
    parts = jax.lax.split(values, [1] * values.shape[axis], axis)
    while len(parts) > 1:
        last = parts[2 * (len(parts) // 2) :]
        pairs = zip(parts[:-1:2], parts[1::2], strict=True)
        parts = [*(operation(first, second) for first, second in pairs), *last]
    return jax.lax.squeeze(parts[0], [axis])


def _written_out(leaf: jax.Array) -> jax.Array:
    """Row-major in memory: else XLA turns a transposition into a layout and loops stay strided."""
    return with_layout_constraint(leaf, Layout(tuple(range(leaf.ndim))))


def batch_last(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of batch-last arrays usable on plain arrays under any nesting of ``vmap``.

    ``function`` takes and returns pytrees of arrays with one trailing batch axis, of length 1
    where an argument does not vary. Of ``SharedRows`` only the offsets get that axis.
    """

    # Loops and ``vmap`` trace their bodies several times over; this one once for a shape.
    traced_once = jax.jit(function, inline=True)

    @jax.custom_batching.custom_vmap
    def on_last(*args):
        batch = max(leaf.shape[-1] for leaf in jax.tree.leaves(args))
        out = traced_once(*args)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (*leaf.shape[:-1], batch)), out)

    @on_last.def_vmap
    def _nested(axis_size, in_batched, *args):
        args, in_batched = unbatch_rows(args, tuple(in_batched))
        inner = max(leaf.shape[-1] for leaf in jax.tree.leaves(args))

        def merge(leaf: jax.Array, batched: bool) -> jax.Array:
            if not batched:
                if leaf.shape[-1] == 1:
                    return leaf
                leaf = jnp.broadcast_to(leaf, (axis_size, *leaf.shape))
            leaf = jnp.broadcast_to(leaf, (*leaf.shape[:-1], inner))
            leaf = jnp.moveaxis(leaf, 0, -2)
            return leaf.reshape(*leaf.shape[:-2], axis_size * inner)

        def split(leaf: jax.Array) -> jax.Array:
            leaf = leaf.reshape(*leaf.shape[:-1], axis_size, inner)
            return jnp.moveaxis(leaf, -2, 0)

        out = on_last(*jax.tree.map(merge, args, in_batched))
        out = jax.tree.map(split, out)
        return out, jax.tree.map(lambda _: True, out)

    @jax.custom_batching.custom_vmap
    def on_plain(*args):
        out = on_last(*jax.tree.map(lambda leaf: leaf[..., None], args))
        return jax.tree.map(lambda leaf: leaf[..., 0], out)

    @on_plain.def_vmap
    def _outermost(axis_size, in_batched, *args):
        del axis_size
        args, in_batched = unbatch_rows(args, tuple(in_batched))

        def to_last(leaf: jax.Array, batched: bool) -> jax.Array:
            return _written_out(jnp.moveaxis(leaf, 0, -1)) if batched else leaf[..., None]

        out = on_last(*jax.tree.map(to_last, args, in_batched))
        out = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, -1, 0), out)
        return out, jax.tree.map(lambda _: True, out)

    return functools.wraps(function)(on_plain)
