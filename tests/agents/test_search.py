"""Searches stay on the grid, keep the best of what they tried, and find the same again."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.agents import search
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.played_settings import PlayedSettings
from jaxserve.agents.rollout import Rollout, rollout
from jaxserve.agents.search import (
    EDGE,
    TIE,
    SearchEffort,
    StaticSearch,
    equal_text,
    search_static,
    setting_text,
    static_objective,
)
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes
from jaxserve.seeds import episode_keys
from jaxserve.spaces import KNOBS
from tests.sizes import SEARCH_EPISODES, SEARCH_HORIZON

KEYS = episode_keys(SEARCH_EPISODES, "validation")
GRADED = (
    pytest.param("static_workload", marks=pytest.mark.deep),
    pytest.param("bursty_workload", marks=pytest.mark.deep),
    "adversarial_multitenant",
)
HARD = "adversarial_multitenant"


@functools.cache
def environment(task: str) -> ServeEnv:
    """A short task: one program serves all."""
    return jaxserve.make(task, overrides={"horizon": SEARCH_HORIZON})


@functools.cache
def searched(task: str, rounds: int = 1, seed: int = 0) -> StaticSearch:
    effort = SearchEffort(candidates=32, rounds=rounds, contenders=8)
    return search_static(environment(task), KEYS, effort=effort, seed=seed)


def found(task: str, rounds: int = 1, seed: int = 0) -> np.ndarray:
    return searched(task, rounds, seed).setting


@functools.cache
def played() -> Rollout:
    """The best static setting of the hard task as a policy."""
    policy = StaticPolicy(action_at(jnp.asarray(found(HARD))))
    return rollout(environment(HARD), policy, KEYS)


def objective(task: str, setting: np.ndarray) -> float:
    return float(static_objective(environment(task), setting[None], KEYS).mean())


class Landscape:
    """Rewards that are a function of the setting, the episode and the speed."""

    def __init__(self, reward: Callable[[np.ndarray, float], float], noise: float = 0.0) -> None:
        self.reward, self.noise = reward, noise
        self.tried: set[bytes] = set()

    def __call__(
        self, env: ServeEnv, indices: np.ndarray, keys: jax.Array, speeds: Sequence[float] = (1.0,)
    ) -> np.ndarray:
        """As ``static_objective``; the noise of an episode differs from setting to setting."""
        self.tried |= {np.asarray(row, np.int32).tobytes() for row in indices}
        values = np.array([[self.reward(row, speed) for speed in speeds] for row in indices])
        first = int(np.asarray(jax.random.key_data(keys))[0, -1] % 2**31)
        seeds = [int(row @ np.arange(1, 1 + len(row))) for row in indices]
        noise = [np.random.default_rng((seed, first)).normal(size=len(keys)) for seed in seeds]
        return values[:, None, :] + self.noise * np.stack(noise)[:, :, None]


def race(
    monkeypatch: pytest.MonkeyPatch,
    reward: Callable[[np.ndarray, float], float],
    task: str = "bursty_workload",
    doubt: float = 0.0,
    noise: float = 0.0,
    episodes: int = 8,
) -> StaticSearch:
    """A search in a landscape."""
    monkeypatch.setattr(search, "static_objective", Landscape(reward, noise))
    keys = episode_keys(episodes, "train")
    return search_static(environment(task), keys, doubt=doubt, effort=SearchEffort(candidates=64))


@pytest.mark.parametrize("task", GRADED)
def test_the_named_setting_is_as_good_as_any_that_was_tried(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No candidate and no neighbour is better by more than a tie; locked knobs are not searched."""
    landscape = Landscape(lambda row, _: -0.01 * float(abs(row - 5).sum()))
    monkeypatch.setattr(search, "static_objective", landscape)
    effort = SearchEffort(candidates=32)
    named = search_static(environment(task), KEYS, effort=effort).setting
    tried = np.stack([np.frombuffer(row, np.int32) for row in landscape.tried])
    sizes, active = grid_sizes(environment(task)), np.asarray(environment(task).knob_active)
    assert ((tried >= 0) & (tried < sizes)).all() and not tried[:, ~active].any()
    values = [landscape.reward(row, 1.0) for row in tried]
    assert landscape.reward(named, 1.0) >= max(values) - TIE
    np.testing.assert_array_equal(named[active], np.minimum(5, sizes[active] - 1))


@pytest.mark.slow
@pytest.mark.parametrize("task", GRADED)
def test_the_same_seed_finds_the_same_setting(task: str) -> None:
    """A search is a function of its arguments, and its value is no accident of the batch."""
    effort = SearchEffort(candidates=32, rounds=1, contenders=8)
    again = search_static(environment(task), KEYS, effort=effort).setting
    np.testing.assert_array_equal(found(task), again)
    alone = objective(task, again)
    pair = np.stack([np.zeros_like(again), again])
    together = static_objective(environment(task), pair, KEYS).mean(1)[1]
    assert together == pytest.approx(alone, abs=1e-5)


def test_ties_go_to_the_engines_own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every setting is as good, none changes."""
    flat = race(monkeypatch, lambda row, _: 0.5)
    env = environment("bursty_workload")
    named = env.effective_action(action_at(jnp.asarray(flat.setting)))
    for knob in KNOBS:
        assert float(getattr(named, knob)) == float(getattr(env.locked, knob)), knob
    assert flat.resolved and "batch_cap 1 to 512" in str(equal_text(flat, grid_sizes(env)))


def test_of_equal_changes_the_larger_cap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caps from 96 on are equal, and the engine's own 32 is not among them."""
    flat = race(monkeypatch, lambda row, _: 0.5 - 0.05 * max(10 - row[0], 0), "static_workload")
    assert setting_text(flat.setting, grid_sizes(environment("static_workload"))).startswith(
        "batch_cap 512, kv_budget_fraction 1"
    )
    text = equal_text(flat, grid_sizes(environment("static_workload")))
    assert text is not None and text.startswith("batch_cap 96 to 512")


def test_a_difference_above_a_tie_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that is better by a little more than a tie is named, however noisy episodes are."""
    best = race(
        monkeypatch,
        lambda row, _: 0.5 + 3 * TIE * float(row[0] == 9),
        "static_workload",
        noise=0.01,
        episodes=512,
    )
    assert best.setting[0] == 9 and best.resolved and best.episodes > 16


def test_the_setting_that_falls_off_an_edge_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cap that is ahead by 2 % at the table's speed and saturates on slower hardware loses to one
    that does not; without doubt it wins."""

    def edge(row: np.ndarray, speed: float) -> float:
        small = row[0] <= 6
        return 0.5 + (0.02 if speed < 1.05 else -0.2) * float(small) - 0.1 * float(row[0] < 6)

    assert race(monkeypatch, edge, "static_workload").setting[0] == 6
    robust = race(monkeypatch, edge, "static_workload", doubt=0.1)
    assert robust.setting[0] > 6
    assert not any(each.equal and each.setting[0] <= 6 for each in robust.contenders)


def test_a_difference_smaller_than_the_doubt_is_a_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own cap is a little behind at one speed and ahead at another: it is named."""

    def crossing(row: np.ndarray, speed: float) -> float:
        return 0.5 + 0.8 * EDGE * (1.0 if speed < 1.05 else -1.0) * float(row[0] > 7)

    named = race(monkeypatch, crossing, "static_workload", doubt=0.1)
    assert named.setting[0] == 7
    assert any(each.equal and each.setting[0] > 7 for each in named.contenders)


def test_a_setting_that_is_behind_at_every_speed_is_no_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """The doubt decides nothing where one setting is ahead at the table's speed, slower and faster,
    however little at one of them."""

    def behind(row: np.ndarray, speed: float) -> float:
        own = {1.0: 2.5, 1.1: 0.5}.get(round(speed, 1), 4.0)
        return 0.5 - own * TIE * float(row[0] == 7) - 0.1 * float(row[0] < 7)

    named = race(monkeypatch, behind, "static_workload", doubt=0.1)
    assert named.setting[0] > 7
    assert not any(each.equal and each.setting[0] == 7 for each in named.contenders)


def test_one_episode_tells_nothing_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Differences of a single episode have no interval, and the search does not say it is sure."""
    named = race(monkeypatch, lambda row, _: 0.001 * float(row[0]), "static_workload", episodes=1)
    assert not named.resolved and named.exhausted
    other = next(each for each in named.contenders if each.reward < named.contenders[0].reward)
    assert not np.isfinite(other.difference[1:]).any()


def test_a_search_goes_on_where_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Rewards that were played are kept, and a second search plays nothing."""
    env = environment("static_workload")
    effort = SearchEffort(candidates=16, rounds=1)
    landscape = Landscape(lambda row, _: -abs(float(row[0]) - 9) / 100)

    def cut(env, indices, keys, speeds=(1.0,)):
        if len(landscape.tried) > 16:
            raise KeyboardInterrupt
        return landscape(env, indices, keys, speeds)

    path = tmp_path / "folder" / "search.npz"
    monkeypatch.setattr(search, "static_objective", cut)
    with pytest.raises(KeyboardInterrupt):
        search_static(env, KEYS, effort=effort, played=PlayedSettings(path))
    before = len(landscape.tried)
    monkeypatch.setattr(search, "static_objective", landscape)
    first = search_static(env, KEYS, effort=effort, played=PlayedSettings(path))
    assert before >= 16 and len(landscape.tried) > before
    monkeypatch.setattr(search, "static_objective", None)
    again = search_static(env, KEYS, effort=effort, played=PlayedSettings(path))
    np.testing.assert_array_equal(first.setting, again.setting)
    assert first.episodes == again.episodes
    # A damaged file costs the time of a search, and no more.
    whole = path.read_bytes()
    entry = whole.find(b"PK\x01\x02") + 6
    damaged = (b"", whole[:100], whole[:entry] + b"\xa6" + whole[entry + 1 :])
    monkeypatch.setattr(search, "static_objective", landscape)
    for content in damaged:
        path.write_bytes(content)
        mended = search_static(env, KEYS, effort=effort, played=PlayedSettings(path))
        np.testing.assert_array_equal(first.setting, mended.setting)


@pytest.mark.slow
def test_slower_hardware_is_slower() -> None:
    """The doubt of a table is played: the same setting serves less on slower hardware."""
    env, setting = environment(HARD), found(HARD)[None]
    slow, own, fast = static_objective(env, setting, KEYS, (2.0, 1.0, 0.5))[0].mean(0)
    assert slow < own < fast
    assert own == pytest.approx(static_objective(env, setting, KEYS).mean(), abs=1e-6)


@pytest.mark.slow
def test_more_rounds_are_never_worse() -> None:
    """Refinement keeps what it has."""
    values = [objective(HARD, found(HARD, rounds)) for rounds in (0, 1, 3)]
    assert values[0] <= values[1] <= values[2]


@pytest.mark.slow
def test_the_objective_is_the_mean_reward_of_the_setting_as_a_policy() -> None:
    """Searches and evaluations play the same episodes."""
    values = static_objective(environment(HARD), found(HARD)[None], KEYS)
    assert values.shape == (1, len(KEYS))
    rewards = np.asarray(played().timesteps.reward, np.float64).mean(axis=1)
    np.testing.assert_allclose(values[0], rewards, rtol=1e-3, atol=1e-4)


def test_settings_are_shown_by_the_knobs_that_act() -> None:
    """Locked knobs are not part of a setting's name."""
    setting = np.array([6, 10, 2, 1, 1, 1, 0], np.int32)
    everything = setting_text(setting, grid_sizes(environment(HARD)))
    assert everything.startswith("batch_cap 24, kv_budget_fraction 1, speculation_depth 2")
    two = setting_text(setting, grid_sizes(environment("static_workload")))
    assert two == "batch_cap 24, kv_budget_fraction 1"
