"""Tasks with a fleet: what is paid for, what is observed, and both simulators beside each other."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.reference_rollout import ReferenceEpisode, table_timer
from jaxserve.agents.rollout import windows_of
from jaxserve.env import FLEET_FEATURE_NAMES, ServeEnv
from jaxserve.errors import InputError
from jaxserve.seeds import episode_keys
from jaxserve.tasks.spec import parse_task, read_task
from jaxserve.types import ServeAction, WindowMetrics

WINDOWS = 40
KEY = episode_keys(1, "train")[0]
WANTED = [8] * 5 + [3] * 15 + [6] * 20


@pytest.fixture(scope="module")
def env() -> ServeEnv:
    """Ten minutes of the chat fleet."""
    return jaxserve.make("fleet_chat", overrides={"horizon": WINDOWS})


def action(replicas: int) -> ServeAction:
    return jaxserve.make_action(batch_cap=128, replicas=replicas)


def played(env: ServeEnv, wanted: list[int]) -> tuple[WindowMetrics, np.ndarray]:
    """Metrics of every window, and the observations' replicas: ready and starting."""

    def window(state, count):
        state, timestep = env.step(state, action(0).replace(replicas=count))
        seen = timestep.observation
        return state, (timestep.metrics, jnp.stack([seen.replicas_ready, seen.replicas_starting]))

    run = jax.jit(lambda counts: jax.lax.scan(window, env.reset(KEY)[0], counts)[1])
    return jax.tree.map(np.asarray, run(jnp.asarray(wanted, jnp.int32)))


@pytest.mark.slow
def test_cost_is_that_of_the_rented_seconds(env: ServeEnv) -> None:
    """Up to electricity, which is less than a third of it."""
    metrics, seen = played(env, WANTED)
    gpus_usd = metrics.replicas_rented * env.window_s * float(env.deployment.usd_per_gpu_s)
    power = metrics.energy_j * float(env.deployment.usd_per_joule)
    np.testing.assert_allclose(metrics.cost_usd, gpus_usd + power, rtol=1e-4)
    assert (metrics.replicas_rented >= metrics.replicas_ready - 1e-6).all()
    np.testing.assert_array_equal(seen[:, 0], metrics.replicas_ready)
    np.testing.assert_array_equal(seen[:, 1], metrics.replicas_starting)
    # Three are ready after the drain, three more start and serve two minutes later.
    assert metrics.replicas_ready[18] == 3 and metrics.replicas_starting[20] == 3
    assert metrics.replicas_ready[-1] == 6


def test_no_request_is_lost_in_scaling(env: ServeEnv) -> None:
    """Arrivals are completed, rejected or still there."""
    metrics, _ = played(env, WANTED)
    there = metrics.waiting[-1] + metrics.running[-1]
    ended = (metrics.completed + metrics.rejected + metrics.lost).sum(axis=0)
    np.testing.assert_allclose(metrics.arrivals.sum(axis=0), ended + there, rtol=1e-3, atol=0.5)
    assert metrics.lost.sum() == 0.0


@pytest.mark.slow
def test_all_replicas_are_the_number_of_them(env: ServeEnv) -> None:
    """0 stands for all, and a static fleet pays for all."""
    zero, eight = (jax.jit(windows_of, static_argnums=3)(env, action(n), KEY, 8) for n in (0, 8))
    jax.tree.map(np.testing.assert_array_equal, zero, eight)
    assert (np.asarray(zero.replicas_rented) == 8).all()


@pytest.mark.slow
def test_the_reference_simulator_agrees(env: ServeEnv) -> None:
    """On replicas that serve and are paid for, and on requests."""
    fast, _ = played(env, WANTED)
    episode = ReferenceEpisode(env, KEY, table_timer("fleet_chat"), WINDOWS)
    rows = [episode.step(action(count)) for count in WANTED]
    slow = jax.tree.map(lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *rows)
    np.testing.assert_array_equal(fast.arrivals, slow.arrivals)
    assert slow.replicas_rented.mean() == pytest.approx(fast.replicas_rented.mean(), rel=0.05)
    assert slow.replicas_ready.mean() == pytest.approx(fast.replicas_ready.mean(), rel=0.05)
    assert slow.completed.sum() == pytest.approx(fast.completed.sum(), rel=0.03)
    good = [each.good.sum() / max(each.completed.sum(), 1.0) for each in (fast, slow)]
    assert good[0] == pytest.approx(good[1], abs=0.05)


def test_features_of_a_fleet_stand_behind_the_others(env: ServeEnv) -> None:
    """Deployments without one do not have them."""
    assert env.feature_names[-2:] == FLEET_FEATURE_NAMES
    _, timestep = env.reset(KEY)
    assert env.observe(timestep.observation).shape == (len(env.feature_names),)
    plain = jaxserve.make("static_workload")
    assert plain.feature_names == jaxserve.FEATURE_NAMES
    assert float(plain.reset(KEY)[1].observation.replicas_ready) == 1.0


def test_the_same_key_is_the_same_episode(env: ServeEnv) -> None:
    """Start-ups included."""
    first, again = (played(env, WANTED)[0] for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deployment": {"num_gpus": 8, "fleet": {"start_s": [-1, 5]}}}, "fleet: start_s is "),
        ({"deployment": {"num_gpus": 8, "fleet": {"starts": [1, 5]}}}, "starts"),
        ({"deployment": {"num_gpus": 9}}, "num_gpus is 9"),
        ({"demand": {"name": "nothing", "streams": {"chat": "long"}}}, "demand: name is 'nothing'"),
        ({"demand": {"name": "servegen_chat", "streams": {}}}, "at least one stream"),
        ({"demand": {"name": "servegen_chat", "streams": {"chat": "slow"}}}, "'slow'"),
    ],
)
def test_wrong_fields_are_named(change: dict, message: str) -> None:
    """One sentence each."""
    data, name, _ = read_task("fleet_chat")
    with pytest.raises(InputError, match=message):
        parse_task(dict(data) | change, name)


def test_deferrable_work_may_wait(env: ServeEnv) -> None:
    """Its deadline lies beyond the objectives of other streams; without the flag it is refused."""
    spec = jaxserve.load_task("fleet_mixed")
    late = [stream for stream in spec.streams if stream.deferrable]
    assert late and all(stream.ttft_slo_s > 120 for stream in late)
    data, name, _ = read_task("fleet_mixed")
    streams = [{k: v for k, v in each.items() if k != "deferrable"} for each in data["streams"]]
    with pytest.raises(InputError, match="ttft_slo_s"):
        parse_task(dict(data) | {"streams": streams}, name)
    assert dataclasses.replace(late[0], deferrable=False).priority == 2


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("static_workload", {"knobs": ["replicas"]}, "has no fleet"),
        ("static_workload", {"locked": {"replicas": 1}}, "has no fleet"),
        ("fleet_chat", {"limits": {"replicas": [1, 8]}, "deployment": 4}, "has 8 replicas as a"),
    ],
)
def test_replicas_that_cannot_be_had_are_refused(task: str, change: dict, message: str) -> None:
    """Before anything is simulated."""
    data, name, _ = read_task(task)
    if "deployment" in change:
        change = change | {"deployment": data["deployment"] | {"num_gpus": change["deployment"]}}
    with pytest.raises(InputError, match=message):
        jaxserve.make(parse_task(dict(data) | change, name))


def test_fleets_of_different_sizes_cannot_be_stacked(env: ServeEnv) -> None:
    """The error names the fleet."""
    data, name, _ = read_task("fleet_chat")
    four = parse_task(dict(data) | {"deployment": data["deployment"] | {"num_gpus": 4}}, name)
    with pytest.raises(InputError, match="the fleet is of 8 replicas and of 4 replicas"):
        jaxserve.stack([env, jaxserve.make(four)])
