"""Gymnasium: its own checker, vectors, and what the spaces promise."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import jaxserve.adapters.gymnasium_env
from jaxserve.errors import InputError
from jaxserve.tasks.spec import task_names

del jaxserve


@pytest.mark.parametrize("task", task_names())
def test_gymnasium_checks_it(task: str) -> None:
    """Registered under its name and accepted by gymnasium's checker."""
    env = gymnasium.make(f"jaxserve/{task}-v0")
    check_env(env.unwrapped, skip_render_check=True)


def test_seeds_are_episodes() -> None:
    """The same seed is the same episode, another seed another, and each ends at the horizon."""
    env = gymnasium.make("jaxserve/bursty_workload-v0", overrides={"horizon": 6})
    action = np.array([9, 10, 2, 0, 0, 0])

    def play(seed: int) -> list[float]:
        env.reset(seed=seed)
        rewards, truncated = [], False
        while not truncated:
            _, reward, _, truncated, _ = env.step(action)
            rewards.append(reward)
        return rewards

    first = play(3)
    assert len(first) == 6 and first == play(3) and first != play(4)


def test_vector_is_many_single_ones() -> None:
    """A vector with seeds 5, 6, 7 plays the episodes of three environments with those seeds."""
    options = {"overrides": {"horizon": 4}}
    envs = gymnasium.make_vec("jaxserve/bursty_workload-v0", num_envs=3, **options)
    observations, _ = envs.reset(seed=5)
    action = np.array([9, 10, 2, 0, 0, 0])
    singles = [gymnasium.make("jaxserve/bursty_workload-v0", **options) for _ in range(3)]
    for index, env in enumerate(singles):
        np.testing.assert_array_equal(env.reset(seed=5 + index)[0], observations[index])
    for window in range(4):
        observations, rewards, _, truncated, _ = envs.step(np.tile(action, (3, 1)))
        for index, env in enumerate(singles):
            seen, reward, _, _, _ = env.step(action)
            np.testing.assert_allclose(seen, observations[index], rtol=1e-4, atol=1e-4)
            assert reward == pytest.approx(rewards[index], rel=1e-4, abs=1e-4)
        assert truncated.all() == (window == 3)
    # In the step after the end the next episodes begin: no reward, no time.
    _, rewards, _, truncated, info = envs.step(np.tile(action, (3, 1)))
    assert (rewards == 0.0).all() and not truncated.any()


@pytest.mark.parametrize(
    "action", [[16, 0, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [-1] + [0] * 5, [0.5] * 6, [0, 0], "x"]
)
def test_actions_outside_the_space(action: object) -> None:
    """Out of range, fractional, of the wrong length, or no numbers: one sentence."""
    env = gymnasium.make("jaxserve/bursty_workload-v0").unwrapped
    env.reset(seed=0)
    with pytest.raises(InputError, match="action is .* it must be whole numbers: batch_cap 0"):
        env.step(action)


def test_step_before_reset() -> None:
    """A sentence and no traceback from inside."""
    with pytest.raises(InputError, match="before reset"):
        gymnasium.make("jaxserve/bursty_workload-v0").unwrapped.step(np.zeros(6, int))
