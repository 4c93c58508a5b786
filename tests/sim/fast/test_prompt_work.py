"""What is left to prefill behind a cached prefix, and how long it takes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast.prompt_work import (
    added_rows,
    alone_seconds,
    found_prefixes,
    mean_of_points,
    prompt_parts,
    prompt_work,
    second_shares,
    seconds_spread,
)
from jaxserve.sim.fast.tick_state import Queues
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.table.lookup import (
    added_s_per_token_rows,
    contract,
    latency_table,
    prefill_s_per_token,
)
from jaxserve.sim.traffic.reuse_table import Found, ReuseTable
from jaxserve.tasks.spec import load_task
from jaxserve.tasks.traffic import traffic_classes

TABLE = contract(
    latency_table(read_table_file("llama-3.1-8b__h100-sxm-80gb")), jnp.int32(0), jnp.int32(0)
)
CLASSES, _ = traffic_classes(load_task("static_workload"))


def one_length(prompt, cached):
    """Classes whose prompts are all equally long, and find the same."""
    full = jnp.full(6, float(prompt))
    classes = dataclasses.replace(
        CLASSES, prompt_tokens=full, prompt_floor=jnp.ones(6), prompt_spread=jnp.zeros(6)
    )
    fresh = full - cached
    return prompt_work(classes, Found(full - fresh, fresh**2, fresh * cached, *[0.0 * full] * 2))


def test_without_a_cache_the_whole_prompt_is_left():
    """Then nothing about the prompts changes."""
    work = prompt_work(CLASSES, None)
    assert work.tokens is CLASSES.prompt_tokens and work.spread is CLASSES.prompt_spread
    assert work.behind_tokens is None and work.shared_kv is None
    found_nothing = prompt_work(CLASSES, Found(*[jnp.zeros(6)] * 5))
    np.testing.assert_array_equal(found_nothing.tokens, work.tokens)
    np.testing.assert_array_equal(found_nothing.floor, work.floor)
    np.testing.assert_array_equal(found_nothing.spread, work.spread)
    np.testing.assert_allclose(added_rows(TABLE, found_nothing), added_rows(TABLE, work))


@pytest.mark.parametrize("cached", [2048, 4096, 6144])
def test_the_rest_of_a_prompt_takes_what_the_whole_takes_beyond_its_beginning(cached):
    """Attention to the cached tokens included, beside a batch and alone."""
    work = one_length(8192, cached)
    lengths = jnp.array([8192.0, float(cached)])
    whole, beginning = np.asarray(added_s_per_token_rows(TABLE, lengths) * lengths).T
    ours = np.asarray(added_rows(TABLE, work) * work.tokens)[:, 0]
    np.testing.assert_allclose(ours, whole - beginning, rtol=0.05)
    alone = [float(n * prefill_s_per_token(TABLE, n)) for n in lengths]
    assert float(alone_seconds(TABLE, work)[0]) == pytest.approx(alone[0] - alone[1], rel=0.06)


def test_prompts_of_which_only_some_are_found_spread():
    """Half of them all but found and half not at all: a mean of a half, as uneven as can be."""
    full = jnp.full(6, 1000.0)
    classes = dataclasses.replace(CLASSES, prompt_tokens=full, prompt_spread=jnp.zeros(6))
    found = Found(0.5 * full, 0.5 * full**2, 0.0 * full, jnp.full(6, 0.5), 0.0 * full)
    work = prompt_work(classes, found)
    np.testing.assert_allclose(work.tokens, 500.0)
    np.testing.assert_allclose(work.spread, 1.0, rtol=1e-5)
    np.testing.assert_array_equal(work.floor, 0.0)
    # As two parts, neither spreads: no prompt is longer than all of them.
    parts = prompt_parts(TABLE, classes, work, found)
    np.testing.assert_allclose(parts.shares, 0.5)
    np.testing.assert_allclose(parts.spread, 0.0, atol=0.05)
    np.testing.assert_allclose(parts.seconds[1], 2.0, rtol=0.02)


@given(st.floats(0.0, 1.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_parts_of_the_prompts_have_their_mean(share, of_found, of_others):
    """Whatever share of the prompts is found for the most part, and how much of each."""
    full = jnp.full(6, 2000.0)
    left = np.array([0.5 * of_found, 1.0 - of_others]) * 2000.0
    shares = np.array([share, 1.0 - share])
    mean, square = float(shares @ left), float(shares @ left**2)
    found = Found(full - mean, *(0.0 * full + x for x in (square, 0.0, share, share * left[0])))
    classes = dataclasses.replace(CLASSES, prompt_tokens=full)
    parts = prompt_parts(TABLE, classes, prompt_work(classes, found), found)
    np.testing.assert_allclose((parts.shares * parts.seconds).sum(axis=0), 1.0, rtol=1e-4)
    assert (parts.seconds >= 0.0).all() and np.isfinite(parts.spread).all()


def test_running_requests_share_what_was_used_last():
    """An idle deployment shares nothing, a full one what its pool finds; a pool twice as large
    finds no less."""
    knots = jnp.linspace(0.0, 500.0, 26)
    moment = jnp.broadcast_to(knots, (1, 6, 26))
    table = ReuseTable(*[moment] * 5)
    nothing = jnp.zeros(6)

    def queues(requests):
        running = jnp.full(6, float(requests))
        return Queues(running, 2000.0 * running, nothing, nothing, nothing)

    gpus, pool = jnp.int32(1), jnp.float32(400_000.0)
    found, shared = found_prefixes(table, queues(0), gpus, jnp.float32(1.0), pool)
    np.testing.assert_array_equal(shared, 0.0)
    _, some = found_prefixes(table, queues(5), gpus, jnp.float32(1.0), pool)
    assert (some > 0.0).all() and (some < found.cached_tokens).all()
    larger, _ = found_prefixes(table, queues(5), gpus, jnp.float32(1.0), 2.0 * pool)
    assert (larger.cached_tokens > found.cached_tokens).all()


@pytest.mark.parametrize("tokens", [2048.0, 68_000.0])
@pytest.mark.parametrize("spread", [0.0, 0.35, 1.0])
def test_three_prompts_have_the_mean_of_their_class(tokens, spread):
    """None takes less than nothing, and seconds spread no less than tokens: more where attention
    makes half of a long prefill."""
    full = jnp.full(6, tokens)
    classes = dataclasses.replace(
        CLASSES, prompt_tokens=full, prompt_spread=jnp.full(6, spread), prompt_floor=0.0 * full
    )
    work = prompt_work(classes, None)
    assert seconds_spread(work) is work.spread
    shares = second_shares(TABLE, work)
    np.testing.assert_allclose(mean_of_points(shares), 1.0, rtol=1e-5)
    assert (np.asarray(shares) > 0.0).all() and (np.diff(shares, axis=0) >= -1e-6).all()
    found = float(seconds_spread(dataclasses.replace(work, seconds=shares))[0])
    if spread == 0.35:
        assert found == pytest.approx(0.54 if tokens > 8192 else 0.35, abs=0.03)
