"""A pytree of many small arrays as one vector of 32-bit words.

To hand one array to a compiled program, or to take one back, costs about a microsecond. A session's
window has two hundred of them, and its computation takes less time than they do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

T = TypeVar("T")
Packed = Any
"""A uint32 array [..., n]: the bits of a tree's numbers, truth values as 0 and 1."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a leaf lies."""

    first: int
    shape: tuple[int, ...]
    dtype: Any
    """of its numbers; that of a key has a type of its own."""


@dataclass(frozen=True)
class Packing(Generic[T]):
    """How pytrees of one structure lie in their vectors. Build it with ``Packing.of``."""

    size: int
    """words of one tree."""
    _places: tuple[_Place, ...]
    _structure: Any

    @classmethod
    def of(cls, tree: T) -> Packing[T]:
        """How ``tree`` is packed, and all that have its structure, types and shapes.

        Args:
          tree: of arrays or of their shapes, without batch axes; of 32-bit numbers, truth values
            and keys.
        """
        leaves, structure = jax.tree.flatten(tree)
        places, size = [], 0
        for leaf in leaves:
            shape = jax.eval_shape(_words, leaf).shape
            places.append(_Place(size, shape, leaf.dtype))
            size += math.prod(shape)
        return cls(size, tuple(places), structure)

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        """of the vector of one tree."""
        return jax.ShapeDtypeStruct((self.size,), jnp.uint32)

    def pack(self, tree: T) -> Packed:
        """The vector [n] of a tree; for use inside jit."""
        return jnp.concatenate([_words(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])

    def unpack(self, vector: Packed) -> T:
        """The tree of a vector [..., n]; its leaves have the same leading axes."""
        return jax.tree.unflatten(self._structure, [_taken(vector, p) for p in self._places])

    def places(self) -> T:
        """For every leaf the numbers of its words in the vector, as nested lists of its shape."""
        found = [
            np.arange(p.first, p.first + math.prod(p.shape)).reshape(p.shape).tolist()
            for p in self._places
        ]
        return jax.tree.unflatten(self._structure, found)


def _taken(vector: Any, place: _Place) -> Any:
    part = vector[..., place.first : place.first + math.prod(place.shape)]
    part = part.reshape((*vector.shape[:-1], *place.shape))
    if jnp.issubdtype(place.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(part)
    if place.dtype == jnp.bool_:
        return part != 0
    return jax.lax.bitcast_convert_type(part, place.dtype)


def _words(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
