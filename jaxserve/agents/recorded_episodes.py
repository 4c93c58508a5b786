"""Episodes of a recording: those that train controllers, and those that test them.

A recording is cut into blocks that alternate between training and test, so that both parts see
every time of the day and no episode of one part overlaps an episode of the other. A block is a few
episodes long, and an hour in recordings of half a day and more. The alternation shifts by a block
from day to day, so that no hour of the day belongs to one part alone. Validation episodes come from
the training part.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.seeds import SPLITS, episode_keys
from jaxserve.sim.traffic.workload import init_workload

BLOCKS = 12
"""Blocks of a recording at least, where it is long enough for blocks of several episodes."""
_HOUR_S = 3600.0
_DAY_S = 86400.0
_SEVERAL = 2
"""Episodes of a block, where the recording has blocks of that length for both parts."""
_DRAWS = 16
"""Seeds tried per episode at a time, to find one that begins where the episode does."""


def is_recorded(env: ServeEnv) -> bool:
    """Whether the environment replays a recording."""
    return env.workload.replay_counts is not None


def training_part(env: ServeEnv) -> ServeEnv:
    """The environment with episodes that begin anywhere in the training part of its recording.

    Raises:
      InputError: the recording is too short for two parts.
    """
    return _beginning_at(env, _starts(env, "train", 1))


def disjoint_episodes(
    env: ServeEnv, split: str, count: int | None = None
) -> tuple[ServeEnv, jax.Array]:
    """Episodes of a split that do not overlap, and the environment that plays them.

    Args:
      env: replays a recording.
      split: ``train``, ``validation`` or ``test``.
      count: episodes wanted; None for all of the recording.

    Returns:
      the environment, and typed keys [N] in the order of the recording. N is ``count``, or less
      where the recording has fewer episodes: then every episode of the part is there.

    Raises:
      InputError: an unknown split, or a recording that is too short for two parts.
    """
    checks.one_of("split", split, SPLITS)
    starts = _starts(env, split, int(np.max(env.horizon)))
    env = _beginning_at(env, starts)
    keys = _keys_of(env, split, len(starts))
    if count is not None and count < len(starts):
        keys = keys[np.sort(spread_order(len(starts))[:count])]
    return env, keys


def spread_order(count: int) -> NDArray[np.int64]:
    """int64[count]: a permutation of 0 to count - 1 whose every beginning is spread evenly.

    The order is that of the van der Corput sequence: numbers by their bits in reverse.
    """
    bits = max(count - 1, 1).bit_length()
    numbers = np.arange(2**bits)
    reverse = sum(((numbers >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    order = np.asarray(reverse)
    return order[order < count]


def _starts(env: ServeEnv, split: str, step: int) -> NDArray[np.int32]:
    """int32[S]: windows at which episodes of the part begin, ``step`` apart inside a block."""
    counts = env.workload.replay_counts
    assert counts is not None
    windows, horizon = len(counts), int(np.max(env.horizon))
    block = _block_windows(windows, horizon, env.window_s)
    firsts = np.arange(windows // block) * block
    if len(firsts) < 2:
        raise InputError(
            f"the recording lasts {windows * env.window_s:.0f} s; training and test episodes that "
            f"do not overlap need {2 * horizon * env.window_s:.0f} s, twice an episode"
        )
    ends = np.append(firsts[1:], windows)
    day = firsts * env.window_s // _DAY_S
    of_day = firsts * env.window_s % _DAY_S // (block * env.window_s)
    tests = (day + of_day) % 2 == 1
    chosen = tests if split == "test" else ~tests
    found = [
        np.arange(first, end - horizon + 1, step)
        for first, end in zip(firsts[chosen], ends[chosen], strict=True)
    ]
    return np.concatenate(found).astype(np.int32)


def _block_windows(windows: int, horizon: int, window_s: float) -> int:
    """Windows of a block, a whole number of episodes."""
    hour = max(round(_HOUR_S / window_s), horizon)
    episodes = min(windows // BLOCKS, hour) // horizon
    if windows >= 2 * _SEVERAL * _SEVERAL * horizon:
        episodes = max(episodes, _SEVERAL)
    return max(episodes, 1) * horizon


def _beginning_at(env: ServeEnv, starts: NDArray[np.int32]) -> ServeEnv:
    counts = env.workload.replay_counts
    assert counts is not None
    # As long as the recording's own, so that all parts share compiled programs.
    padded = np.pad(starts, (0, len(counts) - len(starts)))
    workload = dataclasses.replace(
        env.workload,
        replay_starts=jnp.asarray(padded),
        replay_places=jnp.int32(len(starts)),
    )
    return env.replace(workload=workload)


def _keys_of(env: ServeEnv, split: str, count: int) -> jax.Array:
    """Typed keys [count] of the first seeds whose episodes begin at each of the starts."""
    places = {int(start): place for place, start in enumerate(np.asarray(_all_starts(env)))}
    seeds = np.full(count, -1, np.int64)
    first, size = 0, _DRAWS * count
    while (seeds < 0).any():
        drawn = np.asarray(_start_of(env, episode_keys(size, split, first)))
        # From the last to the first, so that the first seed of an episode stays.
        for seed in range(size - 1, -1, -1):
            place = places[int(drawn[seed])]
            if seeds[place] < 0 or seeds[place] >= first:
                seeds[place] = first + seed
        first += size
    # All keys below the last one that is needed, of which those of the episodes are kept.
    return episode_keys(int(seeds.max()) + 1, split)[seeds]


def _all_starts(env: ServeEnv) -> jax.Array:
    starts, places = env.workload.replay_starts, env.workload.replay_places
    assert starts is not None and places is not None
    return starts[: int(places)]


@jax.jit
def _start_of(env: ServeEnv, keys: jax.Array) -> jax.Array:
    """int32[N]: the window of the recording at which the episode of each key begins."""

    def start(key: jax.Array) -> jax.Array:
        # ``ServeEnv.reset`` gives the traffic the second of the two keys.
        return init_workload(env.workload, jax.random.split(key)[1]).replay_start

    return jax.vmap(start)(keys)
