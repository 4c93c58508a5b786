"""Rules on readings that users report trouble with."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.rule_form import RuleMemory, ScalingRule, first_memory, parameters
from jaxserve.scaling.rules import RULES

FLEET = Fleetwide(
    window_s=15.0,
    most=8,
    least=1,
    group=1,
    requests_per_s=2.0,
    prefill_tokens_per_s=10_000.0,
    kv_tokens=200_000.0,
    ttft_slo_s=1.0,
    tpot_slo_s=0.05,
)
IDLE = Reading(
    waiting=0.0,
    running=0.0,
    kv_usage=0.0,
    waiting_tokens=0.0,
    arrivals_rps=0.0,
    ttft_p90_s=0.0,
    tpot_p90_s=0.0,
    coming_wait_s=0.0,
    serving=4.0,
    starting=0.0,
)
"""Reading without traffic; plain numbers serve as arrays."""
FLOOD = {
    "waiting": 500.0,
    "running": 800.0,
    "kv_usage": 1.0,
    "waiting_tokens": 1e6,
    "arrivals_rps": 30.0,
    "ttft_p90_s": 30.0,
    "tpot_p90_s": 0.2,
}


@functools.partial(jax.jit, static_argnames="fleet")
def want(
    rule: ScalingRule, fleet: Fleetwide, memory: RuleMemory, read: Reading
) -> tuple[jax.Array, RuleMemory]:
    """A rule's answer, by one program for each rule."""
    return rule.want(fleet, memory, read)


def reading(**changed: float) -> Reading:
    """``IDLE`` with some numbers changed."""
    values = vars(IDLE) | changed
    return Reading(**{name: jnp.float32(value) for name, value in values.items()})


def follow(name: str, readings: list[Reading], start: float = 4.0) -> list[float]:
    """Replicas that a rule with its defaults wants after each reading."""
    rule, memory, wanted = RULES[name](), first_memory(FLEET, start), []
    for each in readings:
        value, memory = want(rule, FLEET, memory, each)
        wanted.append(float(value))
    return wanted


def settle(name: str, start: float, read: Reading) -> float:
    """Replicas that a rule wants after an hour, where those that are wanted serve at once."""
    rule, memory, wanted = RULES[name](), first_memory(FLEET, start), start
    for _ in range(240):
        serving = dataclasses.replace(read, serving=jnp.float32(wanted))
        value, memory = want(rule, FLEET, memory, serving)
        wanted = float(value)
    return wanted


@pytest.mark.parametrize("name", RULES)
def test_traffic_to_zero_scales_to_the_least(name: str) -> None:
    """Without traffic every rule goes down to the least number of replicas within an hour."""
    assert settle(name, 4.0, reading()) == FLEET.least


@pytest.mark.parametrize("name", RULES)
def test_a_flood_scales_to_the_most(name: str) -> None:
    """Under a lasting flood every rule goes up to the most replicas within an hour, and stays."""
    assert settle(name, 1.0, reading(**FLOOD)) == FLEET.most


@pytest.mark.parametrize("name", RULES)
def test_a_metrics_outage_stays_within_the_bounds(name: str) -> None:
    """Metrics that are no numbers never take a fleet below its least or above its most."""
    missing = reading(**dict.fromkeys(FLOOD, float("nan")))
    assert all(1.0 <= value <= 8.0 for value in follow(name, [missing] * 60))


@pytest.mark.parametrize("name", RULES)
def test_a_replica_that_never_gets_ready_does_not_hold_a_rule_up(name: str) -> None:
    """A rule that waits for a replica which starts for ever still follows traffic down."""
    stuck = [reading(serving=2.0, starting=1.0, **FLOOD)] * 8 + [reading(serving=2.0)] * 240
    assert follow(name, stuck, 2.0)[-1] == FLEET.least


@pytest.mark.parametrize("name", RULES)
@given(seed=st.integers(0, 10_000))
def test_wanted_replicas_are_whole_and_bounded(name: str, seed: int) -> None:
    """Under any reading a rule wants a whole number of replicas inside the bounds."""
    import numpy as np

    rng = np.random.default_rng(seed)
    readings = [
        reading(**{key: value * rng.exponential() for key, value in FLOOD.items()})
        for _ in range(6)
    ]
    for value in follow(name, readings, float(rng.integers(1, 9))):
        assert value == round(value)
        assert 1.0 <= value <= 8.0


def test_steady_traffic_at_the_edge_of_two_does_not_flap() -> None:
    """HPA's tolerance and stabilisation keep a fleet between one and two replicas still."""
    low, high = reading(running=4.2, serving=1.0), reading(running=3.7, serving=1.0)
    wanted = follow("hpa_running", [low, high] * 60, 1.0)
    assert set(wanted[2:]) == {1.0}


def test_hpa_follows_its_formula() -> None:
    """Twenty running requests at a target of four want five replicas, at once."""
    assert follow("hpa_running", [reading(running=20.0)])[0] == 5.0


def test_the_law_credits_replicas_that_start() -> None:
    """llm-d's law asks for no more while the replicas that it asked for start."""
    hot = {"ttft_p90_s": 1.1, "tpot_p90_s": 0.01}
    # The mean over three windows passes .55 in the second, and is 1.1 from the third on.
    assert follow("slo_law", [reading(**hot)] * 4, 4.0) == [4.0, 4.0, 6.0, 8.0]
    mild = {"ttft_p90_s": 0.66, "tpot_p90_s": 0.01}
    # s c / .55 = .66 * 4 / 5 / .55 < 1: what starts already suffices.
    assert follow("slo_law", [reading(serving=4.0, starting=1.0, **mild)] * 8, 5.0)[-1] == 5.0


@pytest.mark.parametrize("name", RULES)
def test_defaults_are_inside_the_bounds_of_tuning(name: str) -> None:
    """Tuning tries at least the values that a rule's source has."""
    for found in parameters(RULES[name]).values():
        assert found.low <= found.default <= found.high
