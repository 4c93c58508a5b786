"""Batch-last functions and stages change where things lie in memory, never what comes out."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.arrays.batching import add_up, batch_last, largest, stage, staged

CLASSES, AGES = 3, 4
SHAPES = ((CLASSES,), (CLASSES, AGES), ())
BATCHES = (2, 5, 3)  # of the outermost vmap first


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Found:
    """Outputs of several ranks and types."""

    total: jax.Array
    table: jax.Array
    busy: jax.Array
    kept: jax.Array


def weigh(counts: jax.Array, table: jax.Array, scale: jax.Array) -> Found:
    """Class and age axes first, one batch axis last."""
    return Found(
        total=scale * add_up(counts),
        table=table * counts[:, None] + scale,
        busy=(scale > 0.0) & (largest(counts) > 0.0),
        kept=jnp.round(table).astype(jnp.int32),
    )


def weighed(counts: np.ndarray, table: np.ndarray, scale: np.ndarray) -> Found:
    """The same for one environment, in NumPy."""
    return Found(
        total=scale * counts.sum(),
        table=table * counts[:, None] + scale,
        busy=(scale > 0.0) & (counts.max() > 0.0),
        kept=np.round(table).astype(np.int32),
    )


def assert_same(found: Found, expected: Found) -> None:
    for field in dataclasses.fields(Found):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert one.shape == np.shape(other), field.name
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=field.name)


batched_arguments = st.tuples(st.booleans(), st.booleans(), st.booleans()).filter(any)


@pytest.mark.slow
@given(
    st.lists(batched_arguments, max_size=len(BATCHES)),
    st.booleans(),
    st.integers(0, 1000),
)
def test_batch_last_is_a_loop(levels: list[tuple], compiled: bool, seed: int) -> None:
    """Plain, vmapped and nested, whichever arguments each level batches: as one at a time."""
    sizes = BATCHES[: len(levels)]
    rng = np.random.default_rng(seed)
    arguments = [
        rng.normal(size=(*(n for n, level in zip(sizes, levels, strict=True) if level[i]), *shape))
        for i, shape in enumerate(SHAPES)
    ]
    arguments = [values.astype(np.float32) for values in arguments]
    function: Any = batch_last(weigh)
    for level in reversed(levels):
        function = jax.vmap(function, [0 if batched else None for batched in level])
    found = (jax.jit(function) if compiled else function)(*arguments)
    for index in np.ndindex(*sizes):
        own = [
            values[tuple(k for k, level in zip(index, levels, strict=True) if level[i])]
            for i, values in enumerate(arguments)
        ]
        assert_same(jax.tree.map(lambda leaf, at=index: leaf[at], found), weighed(*own))


def test_batch_axes_may_lie_anywhere() -> None:
    """Which axis vmap takes, and where it puts the result, is the caller's choice."""
    rng = np.random.default_rng(0)
    counts, table, scale = (rng.normal(size=(*shape, 5)).astype(np.float32) for shape in SHAPES)
    found = jax.vmap(batch_last(weigh), in_axes=-1, out_axes=-1)(counts, table, scale)
    for i in range(5):
        own = jax.tree.map(lambda leaf, at=i: leaf[..., at], found)
        assert_same(own, weighed(counts[..., i], table[..., i], scale[i]))


def test_batch_last_keeps_the_functions_name() -> None:
    """Profiles and tracebacks name the function that was written."""
    assert batch_last(weigh).__name__ == "weigh"
    assert batch_last(weigh).__doc__ == weigh.__doc__


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("size", range(1, 10))
def test_sums_and_maxima_are_numpys(size: int, axis: int) -> None:
    """Odd or even, whichever axis: every slice counts exactly once."""
    shape = [2, 3, 4]
    shape[axis] = size
    # Small whole numbers, so that no order of summation rounds.
    values = np.random.default_rng(size).integers(-99, 100, shape).astype(np.float32)
    np.testing.assert_array_equal(add_up(jnp.asarray(values), axis), values.sum(axis))
    np.testing.assert_array_equal(largest(jnp.asarray(values), axis), values.max(axis))


@functools.partial(jax.jit, static_argnames="staged")
def run(live: jax.Array, args: tuple[jax.Array, Any], staged: bool) -> Any:
    return stage(live, pieces, *args) if staged else pieces(*args)


def pieces(counts: jax.Array, rest: dict[str, jax.Array]) -> tuple[Any, ...]:
    """A step whose results differ in rank, type and container."""
    kept = jnp.where(rest["keep"], counts, 0.0)
    return kept, {"ranks": jnp.argsort(counts), "any": jnp.any(rest["keep"])}, add_up(kept)


@given(st.integers(0, 1000), st.sampled_from([(), (7,)]))
def test_a_stage_is_its_step(seed: int, batch: tuple[int, ...]) -> None:
    """Compiled or not, the same values, types and containers as without the boundary."""
    rng = np.random.default_rng(seed)
    counts = jnp.asarray(rng.integers(-9, 10, (CLASSES, *batch)), jnp.float32)
    args = (counts, {"keep": jnp.asarray(rng.uniform(size=(CLASSES, *batch)) < 0.5)})
    live = jnp.bool_(True)
    expected = run(live, args, staged=False)
    found = run(live, args, staged=True)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_stages_work_inside_batches() -> None:
    """A flag of the whole batch and a flag of each environment both lead to the step."""

    @batch_last
    def own_flag(counts: jax.Array) -> jax.Array:
        return stage(jnp.any(counts >= 0.0), lambda values: 2.0 * values, counts)

    counts = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(jax.jit(jax.vmap(own_flag))(counts), 2.0 * counts)
    flags = jnp.ones(4, bool)
    each = jax.vmap(lambda live, values: stage(live, jnp.negative, values))
    np.testing.assert_array_equal(jax.jit(each)(flags, counts), -counts)


def test_a_staged_step_takes_live_first() -> None:
    """The decorator is ``stage`` written where a step is defined."""

    @staged
    def doubled(values: jax.Array) -> jax.Array:
        return 2.0 * values

    values = jnp.arange(3.0)
    np.testing.assert_array_equal(doubled(jnp.bool_(True), values), 2.0 * values)
    assert doubled.__name__ == "doubled"
