"""The planner: better than standing still, blind to the future, sensible limits."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy, default_policy
from jaxserve.agents.planner import PlannerConfig, imagine, planner_for
from jaxserve.agents.policy import Policy
from jaxserve.agents.rollout import rollout
from jaxserve.env import EnvState, ServeEnv
from jaxserve.errors import InputError
from jaxserve.grids import KNOB_GRIDS
from jaxserve.seeds import episode_key, episode_keys
from jaxserve.sim.traffic.workload import draw_arrivals
from jaxserve.spaces import KNOBS, make_action
from jaxserve.tasks.spec import task_names
from tests.compiled_env import reset, step

SMALL = PlannerConfig(
    horizon_windows=8, hold_windows=2, candidates=16, elites=4, iterations=2, futures=2
)
HORIZON = 8


def short(task: str) -> ServeEnv:
    """A task of a few windows."""
    return jaxserve.make(task, overrides={"horizon": HORIZON})


def regular_traffic() -> ServeEnv:
    """Ten short requests in every second, the batch cap locked at 1 unless an agent raises it."""
    env = short("static_workload")
    counts = np.zeros((HORIZON, env.ticks, env.workload.regimes.class_mix.shape[1]), np.float32)
    counts[:, ::4, 0] = 5.0
    workload = dataclasses.replace(
        env.workload,
        replay_counts=jnp.asarray(counts),
        replay_starts=jnp.zeros(1, jnp.int32),
        replay_places=jnp.int32(1),
    )
    return dataclasses.replace(env, workload=workload, locked=make_action(batch_cap=1))


def mean_reward(env: ServeEnv, policy: Policy, episodes: int = 2) -> float:
    """Over whole episodes."""
    return float(jnp.mean(rollout(env, policy, episode_keys(episodes, "train")).timesteps.reward))


@pytest.mark.slow
def test_it_solves_a_problem_without_chance() -> None:
    """Far above the knobs it starts from, and near the best constant of all."""
    env = regular_traffic()
    planner = planner_for(env, dataclasses.replace(SMALL, candidates=32, iterations=3, futures=1))
    caps = [StaticPolicy(make_action(batch_cap=cap)) for cap in KNOB_GRIDS["batch_cap"]]
    best = max(mean_reward(env, policy) for policy in caps)
    default, planned = (mean_reward(env, each) for each in (default_policy(env), planner))
    assert default < 0.5 * best
    assert planned > default + 0.8 * (best - default)


@pytest.mark.deep
@pytest.mark.parametrize("task", task_names())
def test_it_runs_on_every_task(task: str) -> None:
    """Knobs from the task's own grids, locked ones left alone, rewards that are numbers."""
    env = short(task)
    played = rollout(env, planner_for(env, SMALL), episode_keys(2, "validation"))
    assert np.isfinite(np.asarray(played.timesteps.reward)).all()
    for knob, active in zip(KNOBS, np.asarray(env.knob_active), strict=True):
        values = np.asarray(getattr(played.actions, knob))
        allowed = KNOB_GRIDS[knob] if active else [float(getattr(env.locked, knob))]
        assert np.isin(values, np.asarray(allowed, values.dtype)).all(), knob
    caps = np.asarray(played.actions.batch_cap)
    held = SMALL.hold_windows
    np.testing.assert_array_equal(caps[:, ::held], caps[:, held - 1 :: held])


def other_future(env: ServeEnv, state: EnvState) -> EnvState:
    """The same present: other arrivals, regimes to come, and time left in this one."""
    traffic = state.workload
    count = traffic.order.shape[0]
    now = int(traffic.position) % count
    order = np.roll(np.asarray(traffic.order), -now)
    return dataclasses.replace(
        state,
        workload=dataclasses.replace(
            traffic,
            key=jax.random.key(99),
            order=jnp.asarray(np.concatenate([order[:1], order[:0:-1]])),
            position=jnp.int32(0),
            dwell_left_s=traffic.dwell_left_s + 17.0,
        ),
    )


def state_after(env: ServeEnv, windows: int) -> EnvState:
    """Where the default policy leads."""
    state, _ = reset(env, episode_key(3, "train"))
    for _ in range(windows):
        state, _ = step(env, state, env.locked)
    return state


@pytest.mark.slow
def test_it_does_not_see_the_future() -> None:
    """Only what is in force now moves the plan: neither the episode's key nor its schedule."""
    env = jaxserve.make("adversarial_multitenant")
    state = state_after(env, 5)
    present, hidden = state, other_future(env, state)
    assert not np.array_equal(present.workload.order, hidden.workload.order)
    for a, b in zip(*(_imagined(env, each) for each in (present, hidden)), strict=True):
        np.testing.assert_array_equal(a, b)
    planner = planner_for(env, SMALL)
    act = jax.jit(planner.act_on_state)
    plans = [
        np.asarray(act(env, planner.init(env), each, jax.random.key(1))[1].plan)
        for each in (present, hidden)
    ]
    np.testing.assert_array_equal(*plans)


def _imagined(env: ServeEnv, state: EnvState) -> list[np.ndarray]:
    """All numbers of a moment with an imagined future."""
    imagined = imagine(env, state, jax.random.key(1))
    key = jax.random.key_data(imagined.workload.key)
    workload = dataclasses.replace(imagined.workload, key=key)
    return jax.tree.leaves(dataclasses.replace(imagined, workload=workload))


@pytest.mark.slow
def test_imagined_traffic_is_that_of_the_task() -> None:
    """The regime in force comes first, then the others; stays end; draws differ."""
    env = jaxserve.make("bursty_workload")
    state = state_after(env, 2)
    traffic = state.workload
    now = int(traffic.order[traffic.position])
    longest = float(env.workload.regimes.dwell_s[now, 1])
    orders, counts = set(), set()
    for seed in range(8):
        imagined = imagine(env, state, jax.random.key(seed)).workload
        order = [int(regime) for regime in imagined.order]
        assert order[0] == now and sorted(order) == [0, 1, 2, 3]
        assert 0.0 <= float(imagined.dwell_left_s) <= longest
        assert float(imagined.burst_level) == float(traffic.burst_level)
        orders.add(tuple(order))
        _, arrivals = draw_arrivals(env.workload, imagined, state.step, env.ticks, env.window_s)
        counts.add(float(jnp.sum(arrivals.counts)))
    assert len(orders) > 2 and len(counts) > 2


@pytest.mark.slow
def test_recordings_go_on_elsewhere() -> None:
    """The planner has the recording's traffic, but not the part of it that is to be played."""
    env = jaxserve.make("trace_replay")
    state = state_after(env, 1)
    starts = {
        int(imagine(env, state, jax.random.key(seed)).workload.replay_start) for seed in range(8)
    }
    assert len(starts) > 6


def test_it_refuses_to_play_on_observations() -> None:
    """Where no state is shown, a sentence says so."""
    env = short("static_workload")
    planner = planner_for(env, SMALL)
    _, timestep = reset(env, jax.random.key(0))
    with pytest.raises(InputError, match="Planner acts on the state of the fast simulator"):
        planner.act(env, planner.init(env), timestep.observation, jax.random.key(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(horizon_windows=1), "horizon_windows is 1; it must be a whole number from 2 to 1000"),
        (dict(hold_windows=24), "hold_windows is 24; it must be a whole number from 1 to 23"),
        (dict(elites=49), "elites is 49; it must be a whole number from 1 to 48"),
        (dict(futures=0), "futures is 0"),
        (dict(exploration=1.5), "exploration is 1.5"),
    ],
)
def test_limits(change: dict, message: str) -> None:
    """Sizes that cannot work are named."""
    with pytest.raises(InputError, match=message):
        PlannerConfig(**change)


@pytest.mark.slow
def test_plans_are_reproducible() -> None:
    """Two planners of the same configuration play the same episode alike."""
    env = short("bursty_workload")
    first, second = (
        rollout(env, planner_for(env, SMALL), episode_keys(2, "validation")) for _ in range(2)
    )
    np.testing.assert_array_equal(first.timesteps.reward, second.timesteps.reward)
