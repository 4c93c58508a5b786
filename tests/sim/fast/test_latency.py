"""From waits to latency distributions."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast.latency import (
    TTFT_EDGES_S,
    FirstTokenDelay,
    itl_quantile,
    tpot_met_share,
    ttft_exceeded,
    ttft_quantile,
)
from jaxserve.sim.fast.lines import AGE_KNOTS
from jaxserve.sim.fast.tick_state import Queues, Tally, empty_tally
from jaxserve.sim.fast.waiting_times import Wait

LIVE = jnp.bool_(True)
TICK_S = jnp.float32(0.125)
ttft_exceeded = jax.jit(ttft_exceeded)


def delay(share: float = 0.0, wait_s: float = 0.0) -> FirstTokenDelay:
    one = jnp.ones(1)
    return FirstTokenDelay(
        least_s=0.03 * one,
        mean_s=0.02 * one[None],
        variance_s2=1e-4 * one[None],
        wait=Wait(jnp.float32(share), jnp.float32(wait_s), jnp.float32(wait_s**2 / 3.0)),
        queued_s=0.05 * one,
    )


def exceeded(by_age: np.ndarray, thresholds_s: np.ndarray, of: FirstTokenDelay) -> np.ndarray:
    ages = jnp.asarray(by_age, jnp.float32)[None]
    limits_s = jnp.asarray(thresholds_s, jnp.float32)[None]
    return np.asarray(ttft_exceeded(LIVE, ages[:, 0], ages, of, limits_s, TICK_S))[0]


def test_parts_of_the_prompts_add_up() -> None:
    """Two parts give the mixture of what each gives alone, queued requests included."""
    by_age, thresholds_s = np.linspace(3.0, 0.0, len(AGE_KNOTS)), np.array([0.04, 0.3, 0.8])
    fast, slow = (
        dataclasses.replace(
            delay(0.3, 0.2),
            mean_s=jnp.full((1, 1), mean_s),
            queued_points_s=jnp.full((3, 1), 2.0 * mean_s),
        )
        for mean_s in (0.01, 0.4)
    )
    both = dataclasses.replace(
        fast,
        mean_s=jnp.concatenate([fast.mean_s, slow.mean_s]),
        variance_s2=jnp.concatenate([fast.variance_s2, slow.variance_s2]),
        queued_points_s=jnp.array([[0.02], [0.8]]),
        shares=jnp.array([[0.7], [0.3]]),
    )
    each = [exceeded(by_age, thresholds_s, of) for of in (fast, slow)]
    assert (each[0] < each[1]).all()
    np.testing.assert_allclose(
        exceeded(by_age, thresholds_s, both), 0.7 * each[0] + 0.3 * each[1], rtol=1e-5
    )


@given(
    st.lists(st.floats(0.0, 3.0), min_size=len(AGE_KNOTS), max_size=len(AGE_KNOTS)),
    st.floats(0.0, 1.0),
    st.floats(0.0, 2.0),
)
def test_exceedance_is_a_distribution(steps: list[float], share: float, wait_s: float) -> None:
    """It starts at everybody, never rises with the threshold and ends at nobody."""
    by_age = np.cumsum(steps)[::-1]
    thresholds_s = np.geomspace(1e-3, 300.0, 300)
    counts = exceeded(by_age, thresholds_s, delay(share, wait_s))
    assert counts[0] == pytest.approx(by_age[0], rel=1e-4, abs=1e-4)
    # At one tick the direct part has all but died out where the queued part begins.
    assert (np.diff(counts) <= 1e-3 * max(by_age[0], 1.0)).all()
    assert counts[-1] == pytest.approx(0.0, abs=1e-2 * max(by_age[0], 1.0))


@given(
    st.lists(st.floats(0.0, 3.0), min_size=len(AGE_KNOTS), max_size=len(AGE_KNOTS)),
    st.floats(0.0, 3.0),
)
def test_prompts_that_had_queued_differ(steps: list[float], prefill_s: float) -> None:
    """With three prompts of a class exceedance is a distribution too, between those in which all
    are the shortest and all the longest; three that are equal are as one."""
    by_age = np.cumsum(steps)[::-1]
    thresholds_s = np.geomspace(1e-3, 300.0, 300)

    def queued(*points_s: float) -> np.ndarray:
        points = jnp.asarray(points_s, jnp.float32)[:, None]
        return exceeded(by_age, thresholds_s, dataclasses.replace(delay(), queued_points_s=points))

    least, most = 0.05 + 0.3 * prefill_s, 0.05 + 2.0 * prefill_s
    counts = queued(least, 0.05 + prefill_s, most)
    few = 1e-3 * max(by_age[0], 1.0)
    assert (np.diff(counts) <= few).all()
    assert (counts >= queued(least, least, least) - few).all()
    assert (counts <= queued(most, most, most) + few).all()
    np.testing.assert_allclose(
        queued(0.05, 0.05, 0.05), exceeded(by_age, thresholds_s, delay()), rtol=1e-5, atol=1e-5
    )


def test_direct_requests_have_the_mean_they_were_given() -> None:
    """The mean TTFT of requests that never queued is least + mean + share * wait."""
    by_age = np.zeros(len(AGE_KNOTS))
    by_age[0] = 1.0
    times_s = np.linspace(0.0, 20.0, 400_001)
    for share, wait_s in ((0.0, 0.0), (0.4, 0.5)):
        mean_s = np.trapezoid(exceeded(by_age, times_s, delay(share, wait_s)), times_s)
        assert mean_s == pytest.approx(0.05 + share * wait_s, rel=0.01)


@pytest.mark.parametrize("sigma", [0.3, 1.0])
@pytest.mark.parametrize("median_s", [0.03, 0.2, 5.0])
def test_quantiles(sigma: float, median_s: float) -> None:
    """Quantiles of counts beyond edges are the sample's within a fraction of an edge's width."""
    samples = np.random.default_rng(0).lognormal(np.log(median_s), sigma, 200_000)
    exceeded = (samples > TTFT_EDGES_S[:, None]).sum(1)
    for probability in (0.5, 0.99):
        counts = jnp.asarray(exceeded, jnp.float32), jnp.float32(len(samples))
        value = float(ttft_quantile(*counts, probability))
        assert value == pytest.approx(np.quantile(samples, probability), rel=0.12)


def test_no_first_token_gives_the_lowest_edge() -> None:
    """No first token, no latency: a finite number and not NaN."""
    value = ttft_quantile(jnp.zeros(len(TTFT_EDGES_S)), jnp.float32(0.0), 0.99)
    assert float(value) == pytest.approx(float(TTFT_EDGES_S[0]))


@given(st.floats(0.005, 0.2), st.floats(0.0, 0.01), st.floats(0.005, 0.2))
def test_tpot_share(tpot_s: float, stall_s2: float, limit_s: float) -> None:
    """Half meet a limit at the mean; a looser limit is met by at least as many."""

    def share(limit: float) -> float:
        return float(
            tpot_met_share(
                jnp.float32(tpot_s),
                jnp.float32(limit),
                jnp.float32(150.0),
                jnp.float32(0.9),
                jnp.float32(stall_s2),
            )
        )

    assert share(tpot_s) == pytest.approx(0.5, abs=1e-3)
    assert 0.0 <= share(limit_s) <= share(1.1 * limit_s) <= 1.0


STEP_S, GPUS, ITERATIONS = 0.02, 3, 40_000


def tallied(prompts: np.ndarray, added_s: np.ndarray, full_s: float) -> tuple[Tally, float]:
    """What a window notes of ITERATIONS iterations, and the mean time of one.

    Args:
      prompts: prompts that end in each iteration.
      added_s: what each prompt adds to its iteration.
    """
    tally = empty_tally(Queues(*[jnp.zeros(1)] * 5))
    noted = dict(
        admitted=jnp.full(1, prompts.sum()),
        steps=jnp.float32(ITERATIONS / GPUS),
        decode_only_s=jnp.float32(ITERATIONS / GPUS * STEP_S),
        stall_s2=jnp.float32((added_s**2).sum() / GPUS),
        prefills=dataclasses.replace(
            tally.prefills,
            iterations=jnp.float32(prompts.sum()),
            added_s=jnp.float32(added_s.sum()),
            full_s=jnp.float32(full_s * prompts.sum()),
        ),
    )
    return dataclasses.replace(tally, **noted), STEP_S + added_s.sum() / ITERATIONS


@pytest.mark.parametrize("prompts_each", [0.0, 0.05, 0.3, 0.6, 0.9, 1.5, 3.0, 8.0])
@pytest.mark.parametrize("spread", [0.2, 0.8])
def test_itl_is_that_of_the_iterations(prompts_each: float, spread: float) -> None:
    """Of a plain step while most iterations only decode, then of those that carry prefill; the 99th
    percentile, which is the tail of what they carry, less closely."""
    rng = np.random.default_rng(0)
    prompts = rng.poisson(prompts_each, ITERATIONS)
    added_s = rng.lognormal(np.log(0.01), spread, prompts.sum())
    iteration_s = STEP_S + np.bincount(
        np.repeat(np.arange(ITERATIONS), prompts), added_s, minlength=ITERATIONS
    )
    tally, mean_s = tallied(prompts, added_s, full_s=0.2)
    gpus, split = jnp.float32(GPUS), jnp.bool_(False)
    found = float(itl_quantile(LIVE, tally, jnp.float32(mean_s), gpus, split, 0.5))
    assert found == pytest.approx(np.median(iteration_s), rel=0.08)
    tail = float(itl_quantile(LIVE, tally, jnp.float32(mean_s), gpus, split, 0.99))
    # No iteration carries more than a full chunk.
    shortened_s = np.minimum(iteration_s, STEP_S + 0.2)
    assert tail == pytest.approx(np.quantile(shortened_s, 0.99), rel=0.1)
    # In a split the decoding GPUs carry none.
    alone = jnp.float32(STEP_S), gpus, jnp.bool_(True)
    for probability in (0.5, 0.99):
        assert float(itl_quantile(LIVE, tally, *alone, probability)) == pytest.approx(STEP_S)


def test_median_itl_of_prompts_longer_than_an_iteration() -> None:
    """Prompts of many chunks fill the iterations, which all take as long as a full one."""
    tally, _ = tallied(np.ones(4000, int), np.full(4000, 1.9), full_s=0.2)
    chunks = dataclasses.replace(tally.prefills, iterations=jnp.float32(38_000))
    tally = dataclasses.replace(tally, prefills=chunks)
    mean_s = jnp.float32(STEP_S + 0.19)
    found = float(itl_quantile(LIVE, tally, mean_s, jnp.float32(GPUS), jnp.bool_(False), 0.5))
    assert found == pytest.approx(STEP_S + 0.2, rel=0.08)


@pytest.mark.slow
@given(
    share=st.floats(0.0, 2.0),
    hardly=st.sampled_from([0.0, 1e-7, 1e-5, 1e-3, 0.1, 1.0]),
    turn=st.sampled_from([-1e-6, 1e-6]),
)
def test_median_itl_is_not_turned_over_by_rounding(
    share: float, hardly: float, turn: float
) -> None:
    """Two compiled programs differ in the last bits, and must agree in the median: also where half
    of the iterations carry prefill, and where what they carry is recomputed."""
    tally, _ = tallied(np.ones(1, int), np.full(1, 0.1), full_s=0.2)
    steps = jnp.float32(50.0)
    prefills = dataclasses.replace(
        tally.prefills,
        iterations=jnp.float32(hardly),
        added_s=jnp.float32(0.1 * hardly),
        full_s=jnp.float32(0.2 * hardly),
    )

    def median(scale: float, shift: float) -> float:
        window = dataclasses.replace(
            tally,
            admitted=jnp.full(1, hardly * scale + shift),
            steps=steps * scale,
            decode_only_s=steps * STEP_S,
            prefills=prefills,
        )
        mean_s = jnp.float32((STEP_S + 0.1 * share) / scale)
        return float(itl_quantile(LIVE, window, mean_s, jnp.float32(GPUS), jnp.bool_(False), 0.5))

    assert median(1.0 + turn, abs(turn)) == pytest.approx(median(1.0, 0.0), rel=1e-3)
