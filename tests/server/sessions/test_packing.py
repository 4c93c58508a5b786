"""Packing: nothing of a tree is lost or moved, alone or in a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from server.sessions.packing import Packing


def tree(seed: int) -> dict[str, Any]:
    """All types that states have, with axes and without."""
    dice = np.random.default_rng(seed)
    return {
        "real": jnp.asarray(dice.normal(size=(2, 3)), jnp.float32),
        "alone": jnp.float32(dice.normal()),
        "whole": jnp.asarray(dice.integers(-9, 9, 4), jnp.int32),
        "switch": jnp.asarray(dice.random(3) < 0.5),
        "key": jax.random.key(seed),
        "none": None,
    }


def same(first: Any, second: Any) -> bool:
    """Whether structure, types, shapes and all bits agree."""

    def plain(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    assert jax.tree.structure(first) == jax.tree.structure(second)
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(
        one.dtype == other.dtype
        and one.shape == other.shape
        and np.array_equal(plain(one), plain(other))
        for one, other in pairs
    )


def test_what_is_packed_comes_back() -> None:
    """Every number and every key as its bits."""
    packing = Packing.of(tree(0))
    vector = jax.jit(packing.pack)(tree(3))
    assert (vector.shape, vector.dtype) == (packing.shape.shape, packing.shape.dtype)
    assert same(jax.jit(packing.unpack)(vector), tree(3))
    assert not same(packing.unpack(vector), tree(4))


def test_bits_stay() -> None:
    """Also those of numbers that compare as equal, or as nothing does."""
    odd = {"x": jnp.asarray([-0.0, jnp.nan, jnp.inf, 1e-45], jnp.float32), "i": jnp.int32(-(2**31))}
    packing = Packing.of(odd)
    found = jax.jit(packing.unpack)(jax.jit(packing.pack)(odd))
    assert np.asarray(found["x"]).tobytes() == np.asarray(odd["x"]).tobytes()
    assert int(found["i"]) == -(2**31)


def test_places_say_where_a_number_lies() -> None:
    """For whoever reads a vector without unpacking it."""
    packing = Packing.of(tree(0))
    words, places = np.asarray(packing.pack(tree(3))), packing.places()
    assert words[places["alone"]].view(np.float32) == tree(3)["alone"]
    assert np.array_equal(words[np.array(places["real"])].view(np.float32), tree(3)["real"])
    assert words[places["switch"]].tolist() == tree(3)["switch"].astype(int).tolist()


def test_a_batch_is_packed_row_by_row() -> None:
    """A vector with a leading axis is those of each tree, and gives its leaves that axis."""
    packing = Packing.of(tree(0))
    trees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(tree, range(5)))
    batch = jax.vmap(packing.pack)(trees)
    for row in range(5):
        assert np.array_equal(np.asarray(batch)[row], np.asarray(packing.pack(tree(row))))
    assert same(packing.unpack(batch), trees)


def test_equal_structures_share_a_packing() -> None:
    """It is a static argument of compiled programs: a new one would be compiled anew."""
    assert Packing.of(tree(0)) == Packing.of(tree(1))
    assert hash(Packing.of(tree(0))) == hash(Packing.of(tree(1)))
    assert Packing.of(tree(0)) != Packing.of({**tree(0), "alone": jnp.zeros(2)})
    assert Packing.of(jax.eval_shape(lambda: tree(0))) == Packing.of(tree(0))
