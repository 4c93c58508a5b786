"""The unrolled Threefry gives JAX's own numbers."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.arrays import threefry
from jaxserve.errors import InputError


@given(seed=st.integers(0, 2**63 - 1), data=st.integers(0, 2**32 - 1))
def test_fold_in_is_jax_fold_in(seed: int, data: int) -> None:
    """Derived keys are the ones that ``jax.random.fold_in`` derives."""
    key = jax.random.key(seed)
    ours = threefry.fold_in(key, np.uint32(data))
    theirs = jax.random.fold_in(key, np.uint32(data))
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


@pytest.mark.parametrize("shape", [(), (1,), (51,), (8, 6), (3, 1, 5), (0,), (4097,)])
def test_uniform_is_jax_uniform(shape: tuple[int, ...]) -> None:
    """Draws equal ``jax.random.uniform`` bit for bit, in every shape."""
    for seed in range(3):
        key = jax.random.key(seed)
        ours, theirs = threefry.uniform(key, shape), jax.random.uniform(key, shape)
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        np.testing.assert_array_equal(ours, theirs)


def test_same_numbers_under_jit_and_vmap() -> None:
    """A batch of keys draws what each key draws alone."""
    keys = jax.random.split(jax.random.key(9), 257)

    def draw(key: jax.Array) -> jax.Array:
        return threefry.uniform(threefry.fold_in(key, 12), (8, 6))

    def reference(key: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.fold_in(key, 12), (8, 6))

    batch = jax.jit(jax.vmap(draw))(keys)
    np.testing.assert_array_equal(batch, jax.vmap(reference)(keys))
    np.testing.assert_array_equal(batch[3], draw(keys[3]))


def test_rejects_keys_of_another_generator() -> None:
    """A key that is not one Threefry key fails at once instead of giving other numbers."""
    with pytest.raises(InputError, match="threefry2x32"):
        threefry.uniform(jax.random.key(0, impl="rbg"), (3,))
    with pytest.raises(InputError, match="threefry2x32"):
        threefry.uniform(jax.random.split(jax.random.key(0), 4), (3,))
