"""Decode steps that nothing can disturb are passed together: logs and windows stay the same."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.reference.settings import (
    Knobs,
    ReferenceSettings,
    Routing,
    SchedulerSettings,
    ShiftedExponentialFrontEnd,
)
from jaxserve.sim.reference.simulator import ReferenceSimulator
from tests.sim.reference.simulator_inputs import ACCEPTANCE, LinearTimer, RowLimit, poisson


class _StepByStep(ReferenceSimulator):
    """The simulator with an event for every iteration."""

    def _undisturbed_s(self) -> float:
        return -math.inf


SCHEDULERS = st.builds(
    SchedulerSettings,
    token_budget=st.sampled_from([64, 2048]),
    watermark=st.sampled_from([0.0, 0.05]),
    prefix_caching=st.booleans(),
    depths=st.sampled_from([(), (3, 2, 0)]),
)
SETTINGS = st.builds(
    ReferenceSettings,
    num_gpus=st.sampled_from([1, 1, 2, 3]),
    queue_capacity=st.sampled_from([5, 10_000]),
    concurrency=st.sampled_from([None, None, 7]),
    restart_s=st.just(1.3),
    rerole_s=st.just(0.7),
    oom_restart_s=st.just(0.9),
    front_end=st.sampled_from([ShiftedExponentialFrontEnd(each) for each in (0.0, 0.02)]),
    scheduler=SCHEDULERS,
    routing=st.sampled_from(Routing),
    fleet=st.sampled_from([None, None, FleetSettings((0.5, 3.0), 2.0, 0.2, 0.1)]),
)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[ReferenceSettings, list[Knobs]]:
    """Settings, and the knobs of consecutive windows."""
    settings = draw(SETTINGS)
    knobs = st.builds(
        Knobs,
        batch_cap=st.sampled_from([2, 32]),
        kv_capacity_tokens=st.sampled_from([600, 2000, 20_000]),
        speculation_depth=st.sampled_from([0, 0, 3]),
        tier=st.sampled_from([0, 0, 1]),
        priority_routing=st.booleans(),
        prefill_gpus=st.sampled_from([0, 0, settings.num_gpus - 1]),
        replicas=st.none() if settings.fleet is None else st.integers(1, settings.num_gpus),
    )
    return settings, draw(st.lists(knobs, min_size=1, max_size=4))


@pytest.mark.slow
@given(_cases(), st.integers(0, 5), st.sampled_from([2.0, 20.0]), st.sampled_from([None, 12]))
def test_steps_passed_together_change_nothing(
    case: tuple[ReferenceSettings, list[Knobs]], seed: int, rate: float, rows: int | None
) -> None:
    settings, plan = case
    memory = None if rows is None else RowLimit(rows)
    passed, stepwise = (
        kind(settings, LinearTimer(), plan[0], poisson(rate, 15, seed), seed, memory)
        for kind in (ReferenceSimulator, _StepByStep)
    )
    for window in range(12):
        knobs = plan[window % len(plan)]
        at_s = (window + 1) * 1.7
        one, other = (dataclasses.asdict(each.advance(at_s, knobs)) for each in (passed, stepwise))
        for name, value in one.items():
            if name in ("tier", "prefill_gpus"):
                continue  # what was in force longest; sums of times are rounded elsewhere
            if isinstance(value, np.ndarray):
                value, other[name] = (np.sort(each, order="id") for each in (value, other[name]))
                assert value.tobytes() == other[name].tobytes()
            elif isinstance(value, float):
                np.testing.assert_allclose(value, other[name], rtol=1e-9)
            else:
                assert value == other[name]
    logs = (np.sort(each.log(), order="id").tobytes() for each in (passed, stepwise))
    assert len(set(logs)) == 1


def test_a_lonely_sequence_takes_few_events() -> None:
    """Its steps are one event, and their times are asked for one by one."""
    (request,) = poisson(1.0, 50, seed=1)[:1]
    request.output_tokens, request.acceptance = 200, ACCEPTANCE
    timer = LinearTimer()
    knobs = Knobs(batch_cap=4, kv_capacity_tokens=10_000)
    simulator = ReferenceSimulator(ReferenceSettings(), timer, knobs, [request])
    simulator.advance(60.0, knobs)
    assert len(timer.seen) == 200
    assert simulator._events.count < 10
