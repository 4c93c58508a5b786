"""Gymnasium: its own checkers, vectors in both restart modes, seeds, and what is refused."""

from __future__ import annotations

import builtins
import importlib
import pickle
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics

from jaxserve.adapters.gymnasium_env import ServeGymEnv, ServeVectorEnv
from jaxserve.errors import InputError
from tests.sizes import each_task

BURSTY = "jaxserve/bursty_workload-v0"
ACTION = np.array([9, 10, 2, 0, 0, 0, 0])
SHORT = {"overrides": {"horizon": 4}}


def vector(mode: AutoresetMode, count: int = 3) -> Any:
    """A short-lived vector."""
    return gymnasium.make_vec(BURSTY, num_envs=count, autoreset_mode=mode, **SHORT)


def play(env: Any, seed: int | None) -> list[float]:
    """Rewards of an episode."""
    env.reset(seed=seed)
    rewards, truncated = [], False
    while not truncated:
        _, reward, terminated, truncated, _ = env.step(ACTION)
        assert not terminated
        rewards.append(reward)
    return rewards


@pytest.mark.parametrize("task", each_task(deep=("bursty_workload", "static_workload")))
def test_gymnasium_checks_it(task: str) -> None:
    """Registered under its name, and accepted by gymnasium's checker without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(f"jaxserve/{task}-v0")
        check_env(env.unwrapped)


def test_observations_are_in_the_declared_space() -> None:
    """Any action at any time: bounds and types are those of the space, info is plain numbers."""
    env: Any = gymnasium.make("jaxserve/adversarial_multitenant-v0", overrides={"horizon": 12})
    env.action_space.seed(0)
    observation, info = env.reset(seed=0)
    for _ in range(12):
        assert env.observation_space.contains(observation)
        assert info and all(type(value) is float and np.isfinite(value) for value in info.values())
        observation, reward, _, truncated, info = env.step(env.action_space.sample())
        assert type(reward) is float
    assert truncated
    observation[:] = 0.0  # the caller's own, not a view of the device's memory


def test_seeds_are_episodes() -> None:
    """The same seed is the same episode, another seed another, and each ends at the horizon."""
    env = gymnasium.make(BURSTY, **SHORT)
    first, second = play(env, 3), play(env, None)
    assert len(first) == 4 and first != second
    assert play(env, 3) == first and play(env, None) == second, "what follows a seed depends on it"
    assert play(env, 4) != first
    assert play(env, 2**40) == play(env, 2**40) != first, "gymnasium has no largest seed"
    held_out = ServeGymEnv("bursty_workload", split="test", overrides={"horizon": 4})
    assert play(held_out, 3) != first, "splits do not share episodes"


def test_an_environment_can_be_pickled_by_its_spec() -> None:
    """Worker processes make the same environment from the registered entry."""
    env = gymnasium.make(BURSTY, **SHORT)
    again = gymnasium.make(pickle.loads(pickle.dumps(env.spec)))
    assert play(again, 1) == play(env, 1)


@pytest.mark.slow
def test_a_vector_is_many_single_ones() -> None:
    """A vector with seeds 5, 6, 7 plays the episodes of gymnasium's own vector of three."""
    ours = vector(AutoresetMode.NEXT_STEP)
    theirs = SyncVectorEnv([lambda: gymnasium.make(BURSTY, **SHORT)] * 3)
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    (seen, info), (expected, expected_info) = ours.reset(seed=5), theirs.reset(seed=5)
    for window in range(5):
        np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)
        assert info.keys() == expected_info.keys()
        for name in info:
            assert info[name].dtype == expected_info[name].dtype
            np.testing.assert_allclose(info[name], expected_info[name], rtol=1e-3, atol=1e-3)
        actions = np.tile(ACTION, (3, 1))
        seen, rewards, terminated, truncated, info = ours.step(actions)
        expected, expected_rewards, _, expected_truncated, expected_info = theirs.step(actions)
        np.testing.assert_allclose(rewards, expected_rewards, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(truncated, expected_truncated)
        assert truncated.all() == (window == 3) and not terminated.any()


def test_next_step_restarts() -> None:
    """The step after the end shows the next episode's start: no reward, no end, other traffic."""
    envs = vector(AutoresetMode.NEXT_STEP)
    start, _ = envs.reset(seed=0)
    actions = np.tile(ACTION, (3, 1))
    first = [envs.step(actions)[1] for _ in range(4)]
    observations, rewards, _, truncated, info = envs.step(actions)
    assert (rewards == 0.0).all() and not truncated.any() and (info["arrivals"] == 0.0).all()
    np.testing.assert_array_equal(observations, start)  # an idle deployment looks alike
    second = [envs.step(actions)[1] for _ in range(4)]
    assert not np.array_equal(first, second)


def test_same_step_restarts() -> None:
    """The last step shows the next episode's start, and keeps what ended for the learner."""
    envs, reference = vector(AutoresetMode.SAME_STEP), vector(AutoresetMode.NEXT_STEP)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    start, _ = envs.reset(seed=0)
    reference.reset(seed=0)
    actions = np.tile(ACTION, (3, 1))
    for window in range(4):
        observations, rewards, _, truncated, info = envs.step(actions)
        last, last_rewards, _, last_truncated, last_info = reference.step(actions)
        np.testing.assert_array_equal(rewards, last_rewards)
        np.testing.assert_array_equal(truncated, last_truncated)
        assert ("final_obs" in info) == (window == 3)
    np.testing.assert_array_equal(observations, start)
    assert info["_final_obs"].all() and info["_final_info"].all()
    np.testing.assert_array_equal(np.stack(info["final_obs"]), last)
    np.testing.assert_array_equal(info["final_info"]["good"], last_info["good"])
    assert (info["arrivals"] == 0.0).all()
    _, rewards, _, truncated, _ = envs.step(actions)
    assert rewards.any() and not truncated.any()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_gymnasium_wrappers_understand_it(mode: AutoresetMode) -> None:
    """Episode statistics and infos by environment come out as from gymnasium's own vectors."""
    envs = DictInfoToList(RecordEpisodeStatistics(vector(mode)))
    envs.reset(seed=0)
    total = 0.0
    for _ in range(4):
        _, rewards, _, _, infos = envs.step(np.tile(ACTION, (3, 1)))
        total += rewards[1]
    ended: Any = infos[1]
    assert ended["episode"]["l"] == 4 and ended["episode"]["r"] == pytest.approx(total, rel=1e-4)


@pytest.mark.slow
def test_a_vector_repeats_itself() -> None:
    """The seed decides the episodes that follow as well; a list seeds each environment."""

    def rewards(seed: Any) -> np.ndarray:
        envs = vector(AutoresetMode.SAME_STEP, 2)
        envs.reset(seed=seed)
        return np.array([envs.step(np.tile(ACTION, (2, 1)))[1] for _ in range(8)])

    first = rewards(7)
    np.testing.assert_array_equal(first, rewards(7))
    assert not np.array_equal(first, rewards(9))
    np.testing.assert_array_equal(rewards([8, 7])[:4], first[:4, ::-1])


def test_bad_actions_are_named() -> None:
    """Both environments refuse what is outside the space, and play on afterwards."""
    env: Any = gymnasium.make(BURSTY, **SHORT).unwrapped
    env.reset(seed=0)
    with pytest.raises(InputError, match="batch_cap is 16; it must be an index from 0 to 15"):
        env.step(np.array([16, 0, 0, 0, 0, 0, 0]))
    assert env.step(ACTION)[1] != 0.0
    envs = vector(AutoresetMode.NEXT_STEP)
    envs.reset(seed=0)
    with pytest.raises(InputError, match="quantization_tier of environment 1 is 1; it must be 0"):
        envs.step(np.array([[0] * 7, [0, 0, 0, 1, 0, 0, 0], [0] * 7]))


def test_no_episode_no_step() -> None:
    """A sentence before the first reset, and after the end where nothing restarts by itself."""
    env: Any = gymnasium.make(BURSTY, **SHORT).unwrapped
    for _ in range(2):
        with pytest.raises(InputError, match="no episode in progress; call reset first"):
            env.step(ACTION)
        play(env, 0)
    with pytest.raises(InputError, match="no episode in progress; call reset first"):
        vector(AutoresetMode.NEXT_STEP).step(np.tile(ACTION, (3, 1)))


def test_bad_settings_are_named() -> None:
    """Seeds, options, splits, modes and counts that do not exist."""
    env, envs = ServeGymEnv(), ServeVectorEnv(2)
    for seed in (-1, 0.5, True, "a"):
        with pytest.raises(InputError, match=r"seed is .*; it must be a whole number from 0 on"):
            env.reset(seed=seed)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"seed is .*; it must be a whole number from 0 on"):
            envs.reset(seed=[1, seed])  # type: ignore[list-item]
    for seeds in ([1], [1, 2, 3]):
        with pytest.raises(InputError, match="it must have one for each of the 2 environments"):
            envs.reset(seed=seeds)
    for environment in (env, envs):
        with pytest.raises(InputError, match="reset got options split; it takes none"):
            environment.reset(options={"split": "test"})
    with pytest.raises(InputError, match=r"split is 'dev'; it must be one of train"):
        ServeGymEnv(split="dev").reset()
    with pytest.raises(InputError, match=r"autoreset_mode is .* it must be one of NextStep, Sam"):
        ServeVectorEnv(2, autoreset_mode=AutoresetMode.DISABLED)
    for count in (0, 1.5):
        with pytest.raises(InputError, match=r"num_envs is .*; it must be a whole number from 1"):
            ServeVectorEnv(count)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="task is 'nope'"):
        ServeGymEnv("nope")


def test_a_missing_gymnasium_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed the extra reads which one to install."""
    real = builtins.__import__

    def without(name: str, *args: Any, **rest: Any) -> Any:
        if name.partition(".")[0] == "gymnasium":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **rest)

    monkeypatch.delitem(sys.modules, "jaxserve.adapters.gymnasium_env")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxserve\[gym\]'"):
        importlib.import_module("jaxserve.adapters.gymnasium_env")
