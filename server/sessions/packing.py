"""A pytree of many small arrays as one vector for each of their types.

To hand one array to a compiled program, or to take one back, costs about a microsecond. A session's
window has two hundred of them, and its computation takes less time than they do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")
Packed = tuple[Any, ...]
"""Arrays [..., n], one for each type, in the order of ``Packing.shapes``."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a leaf lies."""

    vector: int
    first: int
    shape: tuple[int, ...]
    is_key: bool


@dataclass(frozen=True)
class Packing(Generic[T]):
    """How pytrees of one structure lie in their vectors. Build it with ``Packing.of``."""

    shapes: tuple[jax.ShapeDtypeStruct, ...]
    """of the vectors of one tree."""
    _places: tuple[_Place, ...]
    _structure: Any

    @classmethod
    def of(cls, tree: T) -> Packing[T]:
        """How ``tree`` is packed, and all that have its structure, types and shapes.

        Args:
          tree: of arrays or of their shapes, without batch axes.
        """
        leaves, structure = jax.tree.flatten(tree)
        plain = [jax.eval_shape(_plain, leaf) for leaf in leaves]
        dtypes = list(dict.fromkeys(leaf.dtype for leaf in plain))
        sizes = [0] * len(dtypes)
        places = []
        for leaf, shape in zip(leaves, plain, strict=True):
            vector = dtypes.index(shape.dtype)
            places.append(_Place(vector, sizes[vector], shape.shape, _is_key(leaf)))
            sizes[vector] += math.prod(shape.shape)
        shapes = [jax.ShapeDtypeStruct((n,), d) for n, d in zip(sizes, dtypes, strict=True)]
        return cls(tuple(shapes), tuple(places), structure)

    def pack(self, tree: T) -> Packed:
        """The vectors [n] of a tree; for use inside jit."""
        columns: Sequence[list[jax.Array]] = [[] for _ in self.shapes]
        for leaf, place in zip(jax.tree.leaves(tree), self._places, strict=True):
            columns[place.vector].append(_plain(leaf).reshape(-1))
        return tuple(jnp.concatenate(column) for column in columns)

    def unpack(self, vectors: Packed) -> T:
        """The tree of vectors [..., n]; its leaves have the same leading axes.

        NumPy vectors give views of them, which works only without keys in the tree.
        """
        leaves = [_taken(vectors[place.vector], place) for place in self._places]
        return jax.tree.unflatten(self._structure, leaves)


def _taken(vector: Any, place: _Place) -> Any:
    part = vector[..., place.first : place.first + math.prod(place.shape)]
    part = part.reshape((*vector.shape[:-1], *place.shape))
    return jax.random.wrap_key_data(part) if place.is_key else part


def _plain(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
