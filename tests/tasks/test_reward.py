"""Reward: goodput in value units, less money and memory; nothing is gained by not serving."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.tasks.reward import RewardModel, compute_reward, reweight
from jaxserve.types import WindowMetrics

VALUE = np.array([2.0, 1.0], np.float32)
QUALITY = np.array([[1.0, 1.0], [0.99, 0.98], [0.9, 0.95]], np.float32)


def model(**changes: float) -> RewardModel:
    """Two classes that should bring 10 units of value per window."""
    numbers = {
        "expected_value": 10.0,
        "expected_requests_per_s": 8.0,
        "memory_limit_gib": 36.0,
        "usd_scale": 0.002,
        "throughput_weight": 1.0,
        "latency_weight": 0.0,
        "slo_weight": 1.0,
        "cost_weight": 0.05,
        "memory_weight": 1.0,
    } | changes
    return RewardModel(
        value=jnp.asarray(VALUE),
        quality=jnp.asarray(QUALITY),
        ttft_slo_s=jnp.array([0.5, 2.0]),
        **{name: jnp.float32(value) for name, value in numbers.items()},
    )


def window(**values: object) -> WindowMetrics:
    """An idle window with some metrics set."""
    arrays = {
        name: jnp.asarray(value, jnp.int32 if name == "tier" else jnp.float32)
        for name, value in values.items()
    }
    return dataclasses.replace(idle_metrics(2), **arrays)


def test_good_requests_earn_their_value_at_the_tiers_quality() -> None:
    """u_i = value * quality, normalised by the expected value of a window."""
    for tier in range(3):
        metrics = window(completed=[3.0, 2.0], good=[3.0, 2.0], tier=tier)
        expected = float(QUALITY[tier] @ (VALUE * [3.0, 2.0])) / 10.0
        earned = float(compute_reward(model(), metrics, False).total)
        assert earned == pytest.approx(expected, rel=1e-6)


def test_completed_but_late_requests_earn_nothing() -> None:
    """Throughput and the SLO term cancel for a request that missed its objectives."""
    parts = compute_reward(model(), window(completed=[4.0, 0.0], good=[1.0, 0.0]), False)
    assert float(parts.throughput) == pytest.approx(0.8)
    assert float(parts.slo) == pytest.approx(-0.6)
    assert float(parts.total) == pytest.approx(0.2)


def test_money_and_memory_are_subtracted_in_their_own_scales() -> None:
    """Full power costs the cost weight; only memory beyond the limit counts."""
    parts = compute_reward(model(), window(cost_usd=0.002, memory_gib=39.6), False)
    assert float(parts.cost) == pytest.approx(-0.05)
    assert float(parts.memory) == pytest.approx(-0.1)
    assert float(compute_reward(model(), window(memory_gib=36.0), False).memory) == 0.0


counts = st.floats(0.0, 1e4, width=32)


@given(done=counts, good=st.floats(0.0, 1.0), cost=st.floats(0.0, 1.0), memory=counts)
def test_parts_have_their_signs_and_sum_to_the_reward(
    done: float, good: float, cost: float, memory: float
) -> None:
    """Whatever happened in a window, its parts are finite, signed as documented and add up."""
    metrics = window(
        completed=[done, done], good=[good * done, done], cost_usd=cost, memory_gib=memory
    )
    parts = compute_reward(model(latency_weight=0.5), metrics, False)
    total = sum(float(getattr(parts, f.name)) for f in dataclasses.fields(parts)[:-1])
    assert np.isfinite(total)
    assert float(parts.total) == pytest.approx(total, rel=1e-4, abs=1e-4)
    assert float(parts.throughput) >= 0.0
    for name in ("latency", "slo", "cost", "memory"):
        assert float(getattr(parts, name)) <= 0.0


@pytest.mark.parametrize("name", ["rejected", "lost", "waiting", "arrivals"])
def test_requests_that_never_finish_earn_nothing(name: str) -> None:
    """Shedding, losing, starving: the denominator is fixed, so none of them helps."""
    assert float(compute_reward(model(), window(**{name: [50.0, 50.0]}), False).total) == 0.0


def test_config_changes_the_four_weights() -> None:
    """alpha, beta, gamma and delta are throughput, latency, SLO and cost."""
    new = reweight(model(), {"alpha": 2, "beta": 0.5, "gamma": 0, "delta": 3})
    weights = (new.throughput_weight, new.latency_weight, new.slo_weight, new.cost_weight)
    assert [float(weight) for weight in weights] == [2.0, 0.5, 0.0, 3.0]
    assert float(new.memory_weight) == 1.0
    late = window(first_tokens=[2.0, 0.0], ttft_met=[1.0, 0.0], completed=[1.0, 0.0])
    assert float(compute_reward(new, late, False).total) == pytest.approx(0.4 - 0.1)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"epsilon": 1}, "epsilon"),
        ({"alpha": -1}, "alpha"),
        ({"beta": float("nan")}, "beta"),
        ({"gamma": "1"}, "gamma"),
        ({"delta": True}, "delta"),
        ({"delta": 1e9}, "delta"),
        (5, "config"),
        ({1: 2}, "1"),
    ],
)
def test_a_wrong_config_is_named(config: object, named: str) -> None:
    """One sentence that names the weight."""
    with pytest.raises(InputError, match=r"^config") as error:
        reweight(model(), config)
    assert named in str(error.value)


def test_requests_on_track_count_in_the_last_window_alone() -> None:
    """They are worth what good ones are."""
    metrics = window(completed=[3.0, 2.0], good=[2.0, 2.0], on_track=[1.0, 4.0])
    later = window(completed=[4.0, 6.0], good=[3.0, 6.0])
    assert compute_reward(model(), metrics, True) == compute_reward(model(), later, False)
    none = window(completed=[3.0, 2.0], good=[2.0, 2.0])
    assert compute_reward(model(), metrics, False) == compute_reward(model(), none, True)
