"""Recordings have a part that trains and one that tests, and no episode is in both."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.agents.recorded_episodes import (
    _block_windows,
    disjoint_episodes,
    spread_order,
    training_part,
)
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from tests.compiled_env import reset

HORIZON = 200


def recording(windows: int, horizon: int = HORIZON) -> ServeEnv:
    """A silent recording."""
    env = jaxserve.make("trace_replay")
    counts = env.workload.replay_counts
    assert counts is not None
    starts, places = jnp.arange(windows), jnp.int32(max(windows - horizon, 0) + 1)
    workload = dataclasses.replace(
        env.workload,
        replay_counts=jnp.zeros((windows, *counts.shape[1:])),
        replay_starts=starts,
        replay_places=places,
    )
    return env.replace(workload=workload, horizon=jnp.int32(horizon))


def starts_of(env: ServeEnv) -> np.ndarray:
    """All windows at which an episode may begin."""
    starts, places = env.workload.replay_starts, env.workload.replay_places
    assert starts is not None and places is not None
    return np.asarray(starts)[: int(places)]


def begins(env: ServeEnv, keys) -> np.ndarray:
    """The window of the recording at which the episode of each key begins."""
    return np.array([int(reset(env, key)[0].workload.replay_start) for key in keys])


@pytest.mark.parametrize("windows", [400, 900, 1_600, 3_600, 90_000])
def test_training_and_test_never_overlap(windows: int) -> None:
    """No window is in an episode of both parts; both parts have about half of the recording."""
    env = recording(windows)
    assert env.workload.replay_starts is not None
    used = {}
    for split in ("train", "test"):
        part, keys = disjoint_episodes(env, split, None if windows < 50_000 else 8)
        found = begins(part, keys)
        assert (np.diff(found) >= HORIZON).all() and (found <= windows - HORIZON).all()
        starts = starts_of(part)
        used[split] = {w for start in starts for w in range(start, start + HORIZON)}
    anywhere = starts_of(training_part(env))
    trained = {w for start in anywhere for w in range(start, start + HORIZON)}
    assert not trained & used["test"] and used["train"] <= trained
    assert min(map(len, used.values())) >= 0.2 * windows
    assert len(used["train"]) + len(used["test"]) >= 0.75 * windows


def test_no_hour_of_the_day_belongs_to_one_part() -> None:
    """The parts change places from day to day."""
    env = recording(14 * 86_400 // 60)
    env = env.replace(window_s=60.0, horizon=jnp.int32(10))
    hours = {}
    for split in ("train", "test"):
        part, _ = disjoint_episodes(env, split, 1)
        hours[split] = {int(start) // 60 % 24 for start in starts_of(part)}
    assert hours["train"] == hours["test"] == set(range(24))


def test_fewer_episodes_than_asked_for() -> None:
    """A recording says how many it has; a few of many are spread over it."""
    env = recording(3_600)
    _, every = disjoint_episodes(env, "test", 100)
    part, few = disjoint_episodes(env, "test", 2)
    assert len(every) == 8 and len(few) == 2
    assert np.diff(begins(part, few)) > 1_000


def test_a_recording_that_is_too_short_is_refused() -> None:
    """One sentence says how long it must be."""
    with pytest.raises(InputError, match=r"lasts 399 s; .* need 400 s, twice an episode"):
        disjoint_episodes(recording(399), "test")
    with pytest.raises(InputError, match="lasts 250 s"):
        training_part(recording(250))


@given(st.integers(1, 2_000))
def test_every_beginning_is_spread(count: int) -> None:
    """A permutation of which the first half has about as many of the lower numbers as of the
    upper."""
    order = spread_order(count)
    assert sorted(order) == list(range(count))
    half = order[: max(count // 2, 1)]
    assert abs(int((half < count / 2).sum()) - len(half) / 2) <= 1 + 0.26 * len(half)


@given(st.integers(2, 5_000), st.integers(1, 500), st.sampled_from([0.1, 1.0, 10.0]))
def test_blocks_hold_whole_episodes(episodes: int, horizon: int, window_s: float) -> None:
    """A recording of two episodes or more has a block for each part."""
    windows = episodes * horizon
    block = _block_windows(windows, horizon, window_s)
    assert block % horizon == 0 and windows // block >= 2
