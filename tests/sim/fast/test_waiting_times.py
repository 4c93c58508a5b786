"""Waits that a queue of mean requests does not show."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast.waiting_times import (
    ROUTING_MIXED,
    ROUTING_SPLIT,
    Wait,
    add_prefills,
    blocked_wait,
    either_wait,
    empty_prefills,
    prefill_wait,
)

shares = st.floats(0.0, 1.0)
seconds = st.floats(0.0, 5.0)


def wait(share: float, mean_s: float) -> Wait:
    return Wait(jnp.float32(share), jnp.float32(mean_s), jnp.float32(mean_s**2))


@given(shares, seconds, shares, seconds)
def test_either_wait_lies_between(a: float, mean_a: float, b: float, mean_b: float) -> None:
    """Waiting for either is at least as likely as for one, and its mean is between theirs."""
    both = either_wait(wait(a, mean_a), wait(b, mean_b))
    assert max(a, b) - 1e-5 <= float(both.share) <= 1.0 + 1e-6
    if a + b > 1e-3:
        assert min(mean_a, mean_b) - 1e-3 <= float(both.mean_s) <= max(mean_a, mean_b) + 1e-3
    assert float(both.variance_s2) >= 0.0


@pytest.mark.parametrize("mean", [40.0, 60.0, 64.0, 70.0])
def test_blocked_wait_is_what_the_mean_misses(mean: float) -> None:
    """Share times excess is E[(demand - limit)+] less the excess of the mean demand."""
    demand = np.random.default_rng(0).normal(mean, np.sqrt(mean / 2), 1_000_000)
    missing = np.maximum(demand - 64.0, 0.0).mean() - max(mean - 64.0, 0.0)
    # One is freed per second at the limit and a request takes nothing, so seconds count requests.
    freed = min(mean / 64.0, 1.0)
    found = blocked_wait(
        jnp.float32(mean),
        jnp.float32(mean / 2),
        jnp.float32(64.0),
        0.0,
        jnp.float32(freed),
        jnp.float32(1.0),
    )
    assert float(found.share * found.mean_s) == pytest.approx(missing, rel=0.03, abs=0.002)


@pytest.mark.parametrize("chunks", [1.0, 3.5])
def test_prefill_wait_of_random_arrivals(chunks: float) -> None:
    """On one GPU with rare prefills, share and mean wait are those of Poisson arrivals."""
    prefill_s, count, gpu_s = 0.4, 1.0, 20.0
    tally = add_prefills(
        empty_prefills(jnp.float32(0.0)),
        jnp.float32([count]),
        jnp.float32([0.0]),
        jnp.float32([prefill_s]),
        jnp.float32([chunks]),
        jnp.float32([0.0]),
        jnp.float32(0.0),
    )
    one, nothing = jnp.float32(1.0), jnp.float32(0.0)
    found = prefill_wait(tally, one, jnp.float32(gpu_s), nothing, one, ROUTING_MIXED)
    assert float(found.share) == pytest.approx(prefill_s * count / gpu_s, rel=0.02)
    # Uniform over the prefill: who comes before the last iteration waits for it and shares it.
    arrival = np.random.default_rng(0).uniform(0.0, prefill_s, 200_000)
    iteration_s = prefill_s / chunks
    last = prefill_s - iteration_s
    expected = np.where(
        arrival < last, (last - arrival) + iteration_s / 2 * (chunks > 1), prefill_s - arrival
    ).mean()
    assert float(found.mean_s) == pytest.approx(expected, rel=0.12)


def test_the_wait_for_lognormal_prefills_has_their_cube() -> None:
    """The squared wait for a prefill of S is E[S^3] / 3 E[S]."""
    prefill_s, spread = 3.0, 0.5
    tally = add_prefills(
        empty_prefills(jnp.float32(0.0)),
        *(jnp.float32([value]) for value in (1.0, spread, prefill_s, 1.0, 0.0)),
        jnp.float32(0.0),
        skewed=True,
    )
    cube_s3 = prefill_s**3 * (1.0 + spread**2) ** 3
    assert float(tally.wait_s3) == pytest.approx(cube_s3 / 3.0, rel=1e-5)


def test_prefill_wait_on_a_saturated_gpu() -> None:
    """Behind a backlog of long prompts, a request of high priority waits for the next iteration
    with room, which the next long prompt fills: both as in a schedule of such iterations."""
    rng = np.random.default_rng(0)
    iteration_s, count = 0.1, 20_000
    prompts = rng.uniform(2.0, 4.0, count)  # in iterations
    # Work goes on without a gap; there is room wherever a prompt ends inside an iteration.
    with_room = np.floor(np.cumsum(prompts)) * iteration_s
    arrival = rng.uniform(0.0, with_room[-2], 100_000)
    started = with_room[np.searchsorted(with_room, arrival)]
    expected = started + iteration_s - arrival
    gpu_s = prompts.sum() * iteration_s
    tally = add_prefills(
        empty_prefills(jnp.float32(0.0)),
        jnp.float32([count]),
        jnp.float32([prompts.std() / prompts.mean()]),
        jnp.float32([prompts.mean() * iteration_s]),
        jnp.float32([prompts.mean() + 0.5]),
        jnp.float32([prompts.mean() * iteration_s]),
        jnp.float32(iteration_s),
    )
    one, nothing = jnp.float32(1.0), jnp.float32(0.0)
    requests = jnp.float32(count)
    found = prefill_wait(tally, one, jnp.float32(gpu_s), nothing, requests, ROUTING_SPLIT)
    assert float(found.share) == pytest.approx(1.0, abs=1e-3)
    assert float(found.mean_s) == pytest.approx(expected.mean(), rel=0.12)
    assert float(found.variance_s2) ** 0.5 == pytest.approx(expected.std(), rel=0.3)


@given(st.floats(0.01, 0.9), st.integers(1, 7), st.sampled_from([ROUTING_MIXED, ROUTING_SPLIT]))
def test_more_gpus_make_a_busy_one_rarer(utilisation: float, gpus: int, routing: float) -> None:
    """At equal utilisation, the router of a larger deployment avoids busy GPUs more often."""

    def share(count: int) -> float:
        tally = add_prefills(
            empty_prefills(jnp.float32(0.0)),
            jnp.float32([utilisation * count]),
            jnp.float32([0.0]),
            jnp.float32([1.0]),
            jnp.float32([4.0]),
            jnp.float32([0.9]),
            jnp.float32(0.2),
        )
        gpu_s, step_s = jnp.float32(count), jnp.float32(0.02)
        requests = jnp.float32(1.0)
        found = prefill_wait(tally, jnp.float32(count), gpu_s, step_s, requests, routing)
        return float(found.share)

    assert 0.0 <= share(gpus + 1) <= share(gpus) <= 1.0
