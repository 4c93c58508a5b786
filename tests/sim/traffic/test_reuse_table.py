"""Tables of what classes find in a prefix cache."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sim.traffic.prompt_blocks import from_ids
from jaxserve.sim.traffic.reuse import CACHE_TOKENS, cached_tokens
from jaxserve.sim.traffic.reuse_table import look_up, reuse_table
from jaxserve.sim.traffic.trace_classes import ClassMap
from jaxserve.sim.traffic.traces import Trace

EDGES = (2000,)


def conversations(count=300):
    """Requests of ten conversations whose prompts grow, and one long prompt that comes again."""
    rng = np.random.default_rng(1)
    talk = rng.integers(10, size=count)
    turns = np.array([(talk[: i + 1] == talk[i]).sum() for i in range(count)])
    lengths = np.where(talk == 0, 4000, np.minimum(64 * turns, 1900))
    ids = [[f"{t}-{i}" for i in range(-(-n // 16))] for t, n in zip(talk, lengths, strict=True)]
    return Trace(
        np.arange(count, dtype=float),
        lengths.astype(np.int32),
        np.full(count, 50, np.int32),
        blocks=from_ids(ids, lengths, 16),
    )


TRACE = conversations()
TABLE = reuse_table(TRACE, ClassMap((EDGES,)), 2, 3)


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("knot", [0, 3, 24])
def test_at_its_sizes_the_table_holds_what_was_measured(gpus, knot):
    """Means of each class, and nothing for a class without requests."""
    found = look_up(TABLE, jnp.int32(gpus), jnp.float32(CACHE_TOKENS[knot]))
    cached = cached_tokens(TRACE, CACHE_TOKENS[knot : knot + 1], gpus)[:, 0]
    left = TRACE.prompt_tokens - cached
    long = TRACE.prompt_tokens > EDGES[0]
    for index, members in enumerate((~long, long)):
        for value, expected in (
            (found.cached_tokens, cached),
            (found.fresh_square, left**2),
            (found.product, cached * left),
            (found.mostly_found, cached > left),
            (found.mostly_found_fresh, left * (cached > left)),
        ):
            np.testing.assert_allclose(value[index], expected[members].mean(), rtol=1e-3)
    assert found.cached_tokens[2] == 0.0


def test_between_and_beyond_its_sizes_it_goes_on():
    """Nothing is found without a cache, and no more beyond the largest than in it."""
    sizes = np.array([-5.0, 0.0, 1000.0, 4096.0, 5000.0, 20_000.0, 3e7, 1e9], np.float32)
    found = [float(look_up(TABLE, jnp.int32(1), jnp.float32(s)).cached_tokens[0]) for s in sizes]
    assert found[0] == found[1] == 0.0 < found[2]
    assert (np.diff(found) >= 0).all()
    assert found[-1] == found[-2]


def test_more_gpus_than_it_knows_are_taken_for_the_most():
    """An index outside of the table is clamped."""
    two, nine = (look_up(TABLE, jnp.int32(n), jnp.float32(1e6)).cached_tokens for n in (2, 9))
    np.testing.assert_array_equal(two, nine)


def test_kinds_have_rows_of_their_own():
    """A table by kind holds what a table by length does where kinds are lengths."""
    long = (TRACE.prompt_tokens > EDGES[0]).astype(np.int32)
    named = dataclasses.replace(TRACE, kinds=("a", "b"), kind=long)
    table = reuse_table(named, ClassMap(((), ()), ("a", "b")), 2, 3)
    np.testing.assert_allclose(table.cached_tokens, TABLE.cached_tokens)
    np.testing.assert_allclose(table.product, TABLE.product)
