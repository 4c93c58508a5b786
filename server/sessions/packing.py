"""A pytree of many small arrays as one vector of 32-bit words.

Each array that enters or leaves a compiled program costs about a microsecond. A session's window
has two hundred arrays, and its computation takes less time than they would.
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
"""A uint32 array [..., n]: the bits of a tree's numbers; booleans are 0 and 1."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Place of a leaf in the vector."""

    first: int
    shape: tuple[int, ...]
    dtype: Any
    """type of the leaf's numbers; random keys have a type of their own."""


@dataclass(frozen=True)
class Packing(Generic[T]):
    """The layout of pytrees of one structure in vectors. Build it with ``Packing.of``."""

    size: int
    """words of one tree."""
    _places: tuple[_Place, ...]
    _structure: Any

    @classmethod
    def of(cls, tree: T) -> Packing[T]:
        """The packing of all trees with the structure, types and shapes of ``tree``.

        Args:
          tree: arrays or their shapes, without batch axes: 32-bit numbers, booleans and keys.
        """
        leaves, structure = jax.tree.flatten(tree)
        places, size = [], 0
        for leaf in leaves:
            shape = _words_shape(leaf)
            places.append(_Place(size, shape, leaf.dtype))
            size += math.prod(shape)
        return cls(size, tuple(places), structure)

    @property
    def shape(self) -> jax.ShapeDtypeStruct:
        """Shape of the vector of one tree."""
        return jax.ShapeDtypeStruct((self.size,), jnp.uint32)

    def pack(self, tree: T) -> Packed:
        """The vector [n] of a tree; for use inside jit."""
        return jnp.concatenate([_words(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)])

    def unpack(self, vector: Packed) -> T:
        """The tree of a vector [..., n]; its leaves have the vector's leading axes."""
        return jax.tree.unflatten(self._structure, [_taken(vector, p) for p in self._places])

    def places(self) -> T:
        """The indices of each leaf's words in the vector, as nested lists of the leaf's shape."""
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


def _words_shape(leaf: jax.Array | jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """Shape of ``_words`` of a leaf; only random keys need a trace, which takes longer than the
    rest of a packing."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.eval_shape(_words, leaf).shape
    return leaf.shape


def _words(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
