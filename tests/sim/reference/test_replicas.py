"""Replicas of the reference simulator that start, serve, drain and stop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.reference.replicas import Phase
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Knobs, ReferenceSettings
from jaxserve.sim.reference.simulator import ReferenceSimulator
from tests.sim.reference.simulator_inputs import ACCEPTANCE, LinearTimer

MOST = 4


def knobs(replicas: int | None) -> Knobs:
    """Knobs of a fleet."""
    return Knobs(batch_cap=8, kv_capacity_tokens=100_000, replicas=replicas)


def fleet(settings: FleetSettings, requests: list[Request], serving: int) -> ReferenceSimulator:
    """A fleet of ``MOST`` places of which some serve."""
    return ReferenceSimulator(
        ReferenceSettings(num_gpus=MOST, fleet=settings),
        LinearTimer(0.02),
        knobs(serving),
        requests,
    )


def requests(count: int, rate: float, output: int = 100) -> list[Request]:
    """Requests at a constant rate."""
    return [Request(i, i / rate, 200, output, acceptance=ACCEPTANCE) for i in range(count)]


@given(
    wanted=st.lists(st.integers(1, MOST), min_size=6, max_size=20),
    failing=st.sampled_from([0.0, 0.3]),
    refused=st.sampled_from([0.0, 0.3]),
    drain_s=st.sampled_from([0.0, 1.0, 60.0]),
)
def test_no_request_is_lost(
    wanted: list[int], failing: float, refused: float, drain_s: float
) -> None:
    """However a fleet is scaled, every request ends, and what is paid for is what was not off."""
    settings = FleetSettings((1.0, 4.0), drain_s, failing, refused)
    simulator = fleet(settings, requests(60, 10.0), 2)
    rented_s = 0.0
    for window, count in enumerate(wanted):
        stats = simulator.advance(2.0 * (window + 1), knobs(count))
        rented_s += stats.rented_s
        up = simulator.replicas.count(Phase.SERVING) + simulator.replicas.count(Phase.STARTING)
        assert up >= 1 or failing
    simulator.advance(2.0 * len(wanted) + 600.0, knobs(2))
    log = simulator.log()
    assert len(log) == 60
    assert np.isfinite(log["finish_s"]).all()
    assert 0.0 < rented_s <= 2.0 * len(wanted) * MOST + 1e-6


def test_a_replica_is_paid_from_the_request_and_serves_after_its_start() -> None:
    """One replica and one that starts for 5 s: 20 s rented in 10 s, and it serves for 5 of them."""
    simulator = fleet(FleetSettings((5.0, 5.0)), [], 1)
    stats = simulator.advance(10.0, knobs(2))
    assert stats.rented_s == pytest.approx(20.0)
    assert stats.serving == pytest.approx(1.5)


def test_a_start_that_is_cancelled_costs_nothing_from_then_on() -> None:
    """A start that is cancelled after 2 s is paid for 2 s and never serves."""
    simulator = fleet(FleetSettings((50.0, 50.0)), [], 1)
    simulator.advance(2.0, knobs(2))
    stats = simulator.advance(12.0, knobs(1))
    assert stats.rented_s == pytest.approx(10.0)
    simulator.advance(100.0, knobs(1))
    assert simulator.replicas.count(Phase.SERVING) == 1


def test_a_draining_replica_ends_its_sequences_and_gets_no_others() -> None:
    """With time to drain nothing is preempted; without any its sequences begin again elsewhere."""
    for drain_s, preempted in ((100.0, False), (0.0, True)):
        simulator = fleet(FleetSettings((1.0, 1.0), drain_s), requests(8, 100.0, 400), 2)
        simulator.advance(2.0, knobs(2))
        stats = simulator.advance(3.0, knobs(1))
        assert (stats.preemptions > 0) == preempted
        simulator.advance(200.0, knobs(1))
        assert np.isfinite(simulator.log()["finish_s"]).all()
        assert simulator.replicas.count(Phase.OFF) == MOST - 1


def test_a_longer_start_makes_requests_wait_longer() -> None:
    """Mean time to first token rises with the start-up time."""
    waits = []
    for start_s in (0.0, 10.0, 40.0):
        simulator = fleet(FleetSettings((start_s, start_s)), requests(400, 12.0), 1)
        for window in range(60):
            simulator.advance(2.0 * (window + 1), knobs(3))
        simulator.advance(600.0, knobs(3))
        waits.append(simulator.log()["ttft_s"].mean())
    assert waits == sorted(waits)
    assert waits[0] < waits[-1]


@pytest.mark.parametrize("wanted", [0, MOST + 1, -1])
def test_replicas_that_there_are_not_are_refused(wanted: int) -> None:
    """The error names the knob and its range."""
    simulator = fleet(FleetSettings(), [], 1)
    with pytest.raises(InputError, match=r"replicas is .* from 1 to 4"):
        simulator.advance(1.0, knobs(wanted))


def test_a_deployment_without_a_fleet_refuses_replicas() -> None:
    """Where all replicas serve there is nothing to scale."""
    with pytest.raises(InputError, match="all replicas of the deployment serve"):
        ReferenceSimulator(ReferenceSettings(num_gpus=2), LinearTimer(0.02), knobs(1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"start_s": (-1.0, 5.0)}, "start_s is -1"),
        ({"start_s": (9.0, 5.0)}, "the shortest start before the longest"),
        ({"drain_s": -1.0}, "drain_s is -1"),
        ({"failing_share": 1.5}, "failing_share is 1.5"),
    ],
)
def test_impossible_fleets_are_refused(settings: dict[str, object], said: str) -> None:
    """One sentence with the field and its value."""
    with pytest.raises(InputError, match=said):
        FleetSettings(**settings)  # type: ignore[arg-type]
