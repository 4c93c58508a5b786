"""Spaces with the attributes and methods of gymnax's, so that gymnax need not be installed.

Where it is, ``discrete`` and ``box`` give gymnax's own classes, which its wrappers ask for.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray


class Discrete:
    """Whole numbers from 0 to n - 1."""

    def __init__(self, num_categories: int) -> None:
        self.n = num_categories
        self.shape = ()
        self.dtype = jnp.int32

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform; the key is consumed."""
        return jax.random.randint(key, self.shape, 0, self.n, self.dtype)

    def contains(self, x: ArrayLike) -> jax.Array:
        """bool: whether x is inside."""
        return (jnp.asarray(x) >= 0) & (jnp.asarray(x) < self.n)


class Box:
    """Arrays between two bounds."""

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...]) -> None:
        self.low = low
        self.high = high
        self.shape = shape
        self.dtype = jnp.float32

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform; the key is consumed."""
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x: ArrayLike) -> jax.Array:
        """bool: whether x is inside."""
        return jnp.all((jnp.asarray(x) >= self.low) & (jnp.asarray(x) <= self.high))


class MultiDiscrete:
    """Vectors of whole numbers, entry i from 0 to nvec[i] - 1; gymnax has no such space."""

    def __init__(self, nvec: NDArray[np.integer]) -> None:
        self.nvec = nvec
        self.shape = nvec.shape
        self.dtype = jnp.int32

    def sample(self, key: jax.Array) -> jax.Array:
        """Uniform; the key is consumed."""
        return jax.random.randint(key, self.shape, 0, jnp.asarray(self.nvec), self.dtype)

    def contains(self, x: ArrayLike) -> jax.Array:
        """bool: whether x is inside."""
        return jnp.all((jnp.asarray(x) >= 0) & (jnp.asarray(x) < self.nvec))


def discrete(count: int) -> Any:
    """Whole numbers from 0 to count - 1."""
    return _class("Discrete", Discrete)(count)


def box(low: Any, high: Any, shape: tuple[int, ...]) -> Any:
    """float32 arrays between two bounds."""
    return _class("Box", Box)(low, high, shape)


def _class(name: str, otherwise: type) -> Any:
    try:
        return getattr(importlib.import_module("gymnax.environments.spaces"), name)
    except ImportError:
        return otherwise
