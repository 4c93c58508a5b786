"""Twins expect what the simulator gives for the same arrivals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import jaxserve
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.live.twins import Twins, acceptance_scale
from jaxserve.seeds import episode_key
from jaxserve.sim.traffic.workload import draw_arrivals
from tests.compiled_env import reset, step
from tests.live.deployment import TASK, fleet_with, setup_of


@pytest.mark.slow
@pytest.mark.parametrize("output_ages", [1, 8])
def test_a_simulated_episode_again(output_ages: int, tmp_path: Path) -> None:
    """Fed with an episode's arrivals, a twin under its knobs expects its goodput and reward; of
    memoryless outputs, and of those with ages."""
    (tmp_path / "mine.json").write_text(json.dumps(TASK | {"output_ages": output_ages}))
    env = setup_of(tmp_path / "mine.json").env
    state, _ = reset(env, episode_key(3))
    action, other = jaxserve.make_action(batch_cap=32), jaxserve.make_action(batch_cap=1)
    twins = Twins([env] * 2)
    twins.compile()
    for _ in range(5):
        _, arrivals = draw_arrivals(
            env.workload, state.workload, state.step, env.ticks, env.window_s
        )
        state, timestep = step(env, state, action)
        same, worse = twins.advance([action, other], np.asarray(arrivals.counts), 1.0)
        assert same.good == pytest.approx(float(timestep.metrics.good.sum()), rel=1e-4, abs=1e-3)
        assert same.itl_s == pytest.approx(float(timestep.metrics.itl_s), rel=1e-4)
        assert same.reward == pytest.approx(float(timestep.reward), rel=1e-4, abs=1e-4)
    assert worse.good < same.good


@pytest.mark.parametrize("knobs", [("replicas",), ()])
def test_replicas_are_those_that_are_given(knobs: tuple[str, ...], tmp_path: Path) -> None:
    """Whether the task turns their number or others do: under a load that one replica does not bear
    three have more than twice the goodput."""
    env = fleet_with(tmp_path, *knobs).env
    counts = np.full((env.ticks, 1), 40.0, np.float32)
    good = []
    for replicas in (1, 3):
        twins = Twins([env])
        twins.begin(replicas)
        action = jaxserve.make_action(batch_cap=64, replicas=replicas)
        good.append(sum(twins.advance([action], counts, 1.0)[0].good for _ in range(8)))
    assert good[1] > 2.0 * good[0] > 0.0


def test_any_load_is_finite(setup: TaskSetup) -> None:
    """Twins of a window that nobody expected."""
    env = setup.env
    twins = Twins([env])
    classes = len(np.asarray(env.slo.ttft_s))
    for load in (0.0, 1e6, 0.0):
        counts = np.full((env.ticks, classes), load, np.float32)
        (found,) = twins.advance([env.locked], counts, 1.0)
        assert np.isfinite([found.good, found.ttft_met, found.itl_s, found.reward]).all()


def test_how_well_drafts_are_accepted(setup: TaskSetup) -> None:
    """Relative to the profile of the traffic that came; unknown without drafts or traffic."""
    env = setup.env
    classes = len(np.asarray(env.slo.ttft_s))
    counts = np.zeros((env.ticks, classes), np.float32)
    assert acceptance_scale(env, counts, 2, 0.5) is None
    counts[:, 0] = 1.0
    assert acceptance_scale(env, counts, 0, 0.5) is None
    assert acceptance_scale(env, counts, 2, 0.0) is None
    profile = (float(env.workload.classes.tokens_per_step[0, 2]) - 1.0) / 2
    assert acceptance_scale(env, counts, 2, profile) == pytest.approx(1.0)
    assert acceptance_scale(env, counts, 2, profile / 2) == pytest.approx(0.5)
