"""Data read by index keeps its meaning, and is not copied, when what reads it is batched."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.arrays.shared_rows import SharedRows, unbatch_rows

SIZE = 12
VALUES = np.arange(4 * SIZE, dtype=np.float32).reshape(4, SIZE)


@jax.custom_batching.custom_vmap
def read(rows: SharedRows, index: jax.Array) -> jax.Array:
    """``rows.at(index)``, batched by a rule as the tick loop has one."""
    return rows.at(index)


@read.def_vmap
def _read_batched(axis_size, in_batched, rows, index):
    (rows, index), (flags, index_batched) = unbatch_rows((rows, index), tuple(in_batched))
    assert not flags.values
    assert rows.values.ndim == 1
    index = index if index_batched else jnp.broadcast_to(index, (axis_size, *index.shape))
    return read(rows, index), True


def test_shared_values_stay_one_copy() -> None:
    """Values that no environment owns reach the batched function as they were."""
    offset = jnp.array([0, 3, 6])
    rows = SharedRows(values=jnp.asarray(VALUES[0]), offset=offset)
    batched = SharedRows(values=False, offset=True)  # type: ignore
    (same,), (flags,) = unbatch_rows((rows,), (batched,))
    assert same.values is rows.values
    assert same.offset is offset
    assert flags == batched


@pytest.mark.parametrize("trailing", [(), (1,)])
def test_batched_values_lie_end_to_end(trailing: tuple[int, ...]) -> None:
    """Blocks that differ between environments follow each other, and offsets find their own."""
    rows = SharedRows(
        values=jnp.asarray(VALUES).reshape(4, SIZE, *trailing), offset=jnp.array([5], jnp.int32)
    )
    (flat,), (flags,) = unbatch_rows(
        (rows,),
        (SharedRows(values=True, offset=False),),  # type: ignore
    )
    assert flat.values.shape == (4 * SIZE, *trailing)
    assert (flags.values, flags.offset) == (False, True)
    np.testing.assert_array_equal(flat.offset, [[5], [17], [29], [41]])
    np.testing.assert_array_equal(flat.at(jnp.array([2])), VALUES[:, 7:8])


def test_other_arguments_pass_through() -> None:
    """Leaves that are not rows keep their values and flags, whatever tree they lie in."""
    args = ({"a": 1.0, "b": (2.0, SharedRows(jnp.zeros(3), jnp.int32(0)))},)
    flags = ({"a": True, "b": (False, SharedRows(False, False))},)  # type: ignore
    out, out_flags = unbatch_rows(args, flags)
    assert out[0]["a"] == 1.0
    assert out[0]["b"][0] == 2.0
    assert out_flags == flags


@pytest.mark.parametrize("values_axis", [None, 0])
@pytest.mark.parametrize("offset_axis", [None, 0])
def test_under_vmap(values_axis: int | None, offset_axis: int | None) -> None:
    """Whatever is batched, every environment reads what it would read alone."""
    values = jnp.asarray(VALUES if values_axis == 0 else VALUES[1])
    offset = jnp.array([0, 1, 2, 3]) if offset_axis == 0 else jnp.int32(2)
    index = jnp.array([8, 6, 4, 2])

    def one(values, offset, index):
        return read(SharedRows(values=values, offset=offset), index)

    got = jax.jit(jax.vmap(one, (values_axis, offset_axis, 0)))(values, offset, index)
    expected = [
        (VALUES[i] if values_axis == 0 else VALUES[1])[(i if offset_axis == 0 else 2) + 8 - 2 * i]
        for i in range(4)
    ]
    np.testing.assert_array_equal(got, expected)


def test_under_nested_vmap() -> None:
    """Four pieces of hardware times three environments."""
    offset = jnp.arange(12).reshape(4, 3) % 5

    def one(values, offset):
        return read(SharedRows(values=values, offset=offset), jnp.int32(4))

    got = jax.vmap(jax.vmap(one, (None, 0)))(jnp.asarray(VALUES), offset)
    expected = np.take_along_axis(VALUES, np.asarray(offset) + 4, axis=1)
    np.testing.assert_array_equal(got, expected)


def test_a_batch_axis_that_was_moved_last_is_refused() -> None:
    """Values laid out the wrong way round are an error, not wrong numbers."""
    with pytest.raises(AssertionError):
        SharedRows(values=jnp.asarray(VALUES.T), offset=jnp.zeros(4, jnp.int32)).at(jnp.int32(0))
