"""The search for constant settings: the best of a task, and the best of each of its regimes.

The objective is the task's own, the mean reward per window, on the fast simulator. Candidates are
screened on a few training episodes, improved knob by knob, and the best of them race: all play the
same episodes, whose number doubles until the winner is apart or the rest is a tie.

A latency table is never exact. Every contender therefore also plays on hardware that is slower and
faster by the table's doubt, and the race is for the least regret: the largest difference, over the
three speeds, from the best setting at that speed. A setting that is ahead by a little and falls off
an edge on slightly slower hardware has a large regret, a robust one has not.

Settings are equal where no difference of ``TIE`` is left between them, or where the table's doubt
decides which of the two is ahead. Of equal settings the one with the fewest changes from the
engine's own values is named, then the one with the largest batch cap.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from jaxserve.agents.objective import horizon_of, in_chunks, mean_reward, on_all_devices
from jaxserve.agents.played_settings import PlayedSettings
from jaxserve.agents.progress import Progress
from jaxserve.agents.regimes import regime_env
from jaxserve.env import ServeEnv
from jaxserve.grids import KNOB_GRIDS, action_at, grid_sizes, nearest_indices
from jaxserve.spaces import KNOBS, action_text
from jaxserve.tasks.spec import REGIME_COUNT

TIE = 0.002
"""Reward per window; settings that differ by less are equal."""
EDGE = 0.01
"""Reward per window; no setting is called equal that loses more at any speed in doubt."""
CONFIDENCE = 0.95
_DROPPED_AT = 0.997
"""Confidence from which a contender is out: the race looks at many of them many times."""
_CAP = KNOBS.index("batch_cap")


@dataclass(frozen=True)
class SearchEffort:
    """Effort of the search for a constant setting."""

    candidates: int = 512
    """random settings screened first; all settings where the grid has no more."""
    screened_on: int = 16
    """episodes on which candidates are screened."""
    rounds: int = 6
    """rounds of refinement at most; each screens every single-knob change of the ``keep`` best."""
    keep: int = 8
    """settings whose neighbours are screened."""
    contenders: int = 32
    """settings that race."""
    most_windows: int = 8_000_000
    """control windows played in the race at most."""


@dataclass(frozen=True)
class Contender:
    """A setting of the race beside the winner."""

    setting: NDArray[np.int32]
    """int32[7], grid indices."""
    reward: float
    """mean reward per window over the episodes of the race."""
    difference: tuple[float, float, float]
    """reward above the named setting in the same episodes: mean, and its 95 % interval."""
    slower: float
    """difference on hardware that is slower by the table's doubt."""
    faster: float
    """difference on hardware that is faster by the table's doubt."""
    equal: bool
    """whether the setting is equal to the named one."""


@dataclass(frozen=True)
class StaticSearch:
    """Result of ``search_static``."""

    setting: NDArray[np.int32]
    """int32[7], grid indices of the named setting."""
    contenders: tuple[Contender, ...]
    """settings that were still in the race at its end, the named one first, then by reward; the
    engine's own setting is among them in any case."""
    episodes: int
    """training episodes of the race."""
    doubt: float
    """relative doubt of the table's times, 0 where the table is exact by definition."""
    resolved: bool
    """whether every difference between settings that may be equal is known to ``TIE``."""
    exhausted: bool
    """whether all training episodes were played."""

    @property
    def equals(self) -> NDArray[np.int32]:
        """int32[N, 6]: the settings equal to the named one, itself included."""
        return np.stack([each.setting for each in self.contenders if each.equal])


def static_objective(
    env: ServeEnv, indices: np.ndarray, keys: jax.Array, speeds: Sequence[float] = (1.0,)
) -> np.ndarray:
    """float[N, S], or float[N, S, K] with K speeds: mean reward of constant settings.

    Args:
      indices: int32[N, 6], grid indices.
      keys: [S], episodes.
      speeds: factors on all times of the latency table, above 1 for slower hardware.
    """
    count, episodes, kinds = len(indices), len(keys), len(speeds)
    settings = np.repeat(np.asarray(indices, np.int32), episodes * kinds, axis=0)
    rows = np.tile(np.repeat(np.arange(episodes), kinds), count)
    factors = np.tile(np.asarray(speeds, np.float32), count * episodes)
    run = functools.partial(_static_rollouts, env, horizon_of(env))
    values = in_chunks(run, settings, keys[rows], factors).reshape(count, episodes, kinds)
    return values[:, :, 0] if kinds == 1 else values


def search_static(
    env: ServeEnv,
    keys: jax.Array,
    *,
    doubt: float = 0.0,
    effort: SearchEffort | None = None,
    seed: int = 0,
    played: PlayedSettings | None = None,
    progress: Progress | None = None,
) -> StaticSearch:
    """The best constant setting on training episodes, and the settings that are equal to it.

    Args:
      keys: [S], training episodes in an order whose every beginning stands for the whole; the race
        ends with the last of them at the latest.
      doubt: relative doubt of the table's times.
      seed: of the random candidates.
      played: rewards of an earlier search of the same environment and keys, which are used again;
        it is told every new one.
    """
    effort = effort or SearchEffort()
    speeds = (1.0,) if doubt == 0.0 else (1.0, 1.0 + doubt, 1.0 / (1.0 + doubt))
    played = PlayedSettings() if played is None else played
    search = _Search(env, keys, speeds, effort, played, progress)
    racing, found, out = search.race(search.screen(seed))
    return _named(racing, found, out, search.default, doubt, found.shape[1] == len(keys))


@dataclass(frozen=True)
class _Search:
    """A search and what it has to go by."""

    env: ServeEnv
    keys: jax.Array
    """typed keys [S] of training episodes."""
    speeds: tuple[float, ...]
    """factors on the table's times, the table's own first."""
    effort: SearchEffort
    played: PlayedSettings
    progress: Progress | None

    @property
    def sizes(self) -> NDArray[np.int64]:
        """int[7], values of each knob."""
        return grid_sizes(self.env)

    @property
    def default(self) -> NDArray[np.int32]:
        """int32[7]: the engine's own values on the grid, 0 for locked knobs."""
        nearest = np.asarray(nearest_indices(self.env.locked), np.int32)
        return np.where(self.sizes > 1, nearest, 0).astype(np.int32)

    def rewards(
        self, settings: NDArray[np.int32], episodes: int, speeds: tuple[float, ...]
    ) -> NDArray[np.float32]:
        """float32[N, episodes, K]: rewards of settings int32[N, 6] on the first episodes at K
        speeds."""

        def play(missing: NDArray[np.int32], first: int) -> np.ndarray:
            found = static_objective(self.env, missing, self.keys[first:episodes], speeds)
            return found.reshape(len(missing), -1, len(speeds))

        return self.played.rewards(settings, episodes, speeds, play)

    @property
    def _screened_on(self) -> int:
        return min(self.effort.screened_on, len(self.keys))

    def screen(self, seed: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Screens settings int32[N, 6] by their mean rewards float32[N]: all settings of a small
        grid; else random ones, and the neighbours of the best in as many rounds as find new
        ones."""
        sizes, effort = self.sizes, self.effort

        def screened(settings: NDArray[np.int32]) -> NDArray[np.float32]:
            return self.rewards(settings, self._screened_on, (1.0,))[:, :, 0].mean(1)

        if math.prod(int(size) for size in sizes) <= effort.candidates:
            axes = np.meshgrid(*(np.arange(size) for size in sizes), indexing="ij")
            pool = np.stack([axis.ravel() for axis in axes], axis=1).astype(np.int32)
            return pool, screened(pool)
        generator = np.random.default_rng(seed)
        drawn = np.unique(generator.integers(0, sizes, (4 * effort.candidates, len(sizes))), axis=0)
        pool = generator.permutation(drawn)[: effort.candidates].astype(np.int32)
        pool = np.unique(np.concatenate([self.default[None], pool]), axis=0)
        values = screened(pool)
        for turn in range(effort.rounds):
            if self.progress:
                self.progress("best static, screening", turn, effort.rounds)
            tied = values >= values.max() - TIE
            likely = _preferred(pool, values, self.default, tied)
            best = pool[np.append(np.argsort(-values)[: effort.keep], likely)]
            near = np.unique(np.concatenate([single_changes(row, sizes) for row in best]), axis=0)
            seen = {row.tobytes() for row in pool}
            fresh = np.array([row for row in near if row.tobytes() not in seen], np.int32)
            if not len(fresh):
                break
            pool = np.concatenate([pool, fresh])
            values = np.concatenate([values, screened(fresh)])
        return pool, values

    def race(
        self, pool: tuple[NDArray[np.int32], NDArray[np.float32]]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]:
        """Lets contenders play until they are apart or equal.

        Returns:
          settings int32[N, 6] at the end, their rewards float32[N, E, K], and bool[N] those that
          are certainly worse.
        """
        racing, episodes = self._contenders(pool), self._screened_on
        per_episode = len(self.speeds) * horizon_of(self.env)
        windows = len(racing) * episodes * per_episode
        while True:
            if self.progress:
                self.progress("best static, race", episodes, len(self.keys))
            found = self.rewards(racing, episodes, self.speeds)
            regret = _regret(found)
            leader = _leader(found, regret)
            paired = found - found[leader]
            ahead = paired.mean(1) + _margin(paired, _DROPPED_AT)
            # Worse at every speed, or far below at one of them.
            out = (ahead < -TIE).all(1) | (ahead < -(2.0 * EDGE + regret[leader])).any(1)
            out[leader] = False
            stays = ~out | (racing == self.default).all(1)
            following = min(2 * episodes, len(self.keys))
            windows += int(stays.sum()) * (following - episodes) * per_episode
            last = episodes == len(self.keys) or windows > self.effort.most_windows
            if last or _resolved(paired, out):
                return racing, found, out
            racing, episodes = racing[stays], following

    def _contenders(self, pool: tuple[NDArray[np.int32], NDArray[np.float32]]) -> NDArray[np.int32]:
        """int32[N, 6]: the best of the pool, the engine's own setting, and the neighbours of the
        setting that would be named now."""
        settings, values = pool
        order = np.argsort(-values)
        tied = values >= values.max() - TIE
        likely = settings[_preferred(settings, values, self.default, tied)]
        near = (settings != likely).sum(1) <= 1
        near &= values >= values.max() - 5.0 * EDGE
        rows = [self.default[None], settings[order[: self.effort.contenders]], settings[near]]
        return np.unique(np.concatenate(rows), axis=0)


def regime_settings(
    env: ServeEnv,
    keys: jax.Array,
    static: np.ndarray,
    *,
    regimes: int = REGIME_COUNT,
    progress: Progress | None = None,
) -> np.ndarray:
    """int32[regimes, 6]: the best constant setting of each regime held for whole episodes.

    Args:
      regimes: how many the task has; an environment repeats them up to ``REGIME_COUNT``.
    """
    best = []
    effort = SearchEffort(candidates=256, rounds=4, keep=4, contenders=8)
    for regime in range(regimes):
        if progress:
            progress("best setting of each regime", regime, regimes)
        held = regime_env(env, regime)
        found = search_static(held, keys, effort=effort, seed=regime).setting
        both = np.stack([found, static])
        best.append(both[int(np.argmax(static_objective(held, both, keys).mean(1)))])
    return np.stack(best)


def single_changes(setting: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The setting and everything one knob away, int32[N, 6]."""
    rows = [np.asarray(setting, np.int32)]
    for knob, size in enumerate(sizes):
        for value in range(size):
            if value != setting[knob]:
                row = rows[0].copy()
                row[knob] = value
                rows.append(row)
    return np.stack(rows)


def setting_text(indices: np.ndarray, sizes: np.ndarray) -> str:
    """A setting in words, active knobs only."""
    return action_text(action_at(jnp.asarray(indices)), sizes > 1)


def equal_text(found: StaticSearch, sizes: np.ndarray) -> str | None:
    """The values of each knob that are equal to the named one while the other knobs stay, in one
    sentence such as "batch_cap 24 to 512 are equal here"; None where there are none."""
    named = found.setting
    equals = {tuple(row) for row in found.equals.tolist()}
    parts = []
    for knob, size in enumerate(sizes):
        low = high = int(named[knob])
        while low > 0 and _with(named, knob, low - 1) in equals:
            low -= 1
        while high < size - 1 and _with(named, knob, high + 1) in equals:
            high += 1
        if low < high:
            grid = KNOB_GRIDS[KNOBS[knob]]
            parts.append(f"{KNOBS[knob]} {grid[low]:g} to {grid[high]:g}")
    return f"{', '.join(parts)} are equal here" if parts else None


def _with(setting: np.ndarray, knob: int, value: int) -> tuple[int, ...]:
    changed = [int(index) for index in setting]
    changed[knob] = value
    return tuple(changed)


def _regret(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32[N]: largest distance, over the speeds, from the best mean of float32[N, E, K]."""
    means = rewards.mean(1)
    return (means.max(0) - means).max(1)


def _leader(rewards: NDArray[np.float32], regret: NDArray[np.float32]) -> int:
    """Index of the least regret; among equal ones, of the largest mean at the table's speed."""
    return int(np.lexsort((-rewards.mean(1)[:, 0], np.round(regret, 7)))[0])


def _preferred(
    settings: NDArray[np.int32],
    values: NDArray[np.float32],
    default: NDArray[np.int32],
    equal: NDArray[np.bool_],
) -> int:
    """Index of the equal setting with the fewest changes, then the largest cap, then reward."""
    changes = (settings != default).sum(1)
    return int(np.lexsort((-values, -settings[:, _CAP], changes, ~equal))[0])


def _named(
    racing: NDArray[np.int32],
    found: NDArray[np.float32],
    out: NDArray[np.bool_],
    default: NDArray[np.int32],
    doubt: float,
    exhausted: bool,
) -> StaticSearch:
    """The setting that a race names, beside the others.

    Args:
      racing, found, out: what ``_Search.race`` returns.
      default: int32[7], the engine's own setting.
    """
    means = found.mean(1)
    regret = np.where(out, np.inf, _regret(found))
    least = regret.min()
    paired = found - found[_leader(found, regret)]
    difference, margin = paired.mean(1), _margin(paired, CONFIDENCE)
    robust = regret <= least + TIE
    # The doubt decides: ahead of the most robust setting at one speed, behind at another.
    in_doubt = (difference.max(1) >= 0.0) & (regret <= max(EDGE, least + TIE))
    # The traffic does not tell, and little is at stake.
    unknown = (difference + margin >= 0.0).all(1) & (difference >= -0.5 * EDGE).all(1)
    equal = ~out & (robust | in_doubt | unknown)
    named = _preferred(racing, means[:, 0], default, equal)
    beside = found - found[named]
    by_reward = (int(i) for i in np.argsort(-means[:, 0], kind="stable"))
    fastest = found.shape[2] - 1
    return StaticSearch(
        setting=racing[named],
        contenders=tuple(
            Contender(
                setting=racing[i],
                reward=float(means[i, 0]),
                difference=_mean_interval(beside[i, :, 0]),
                slower=float(beside[i, :, min(1, fastest)].mean()),
                faster=float(beside[i, :, fastest].mean()),
                equal=bool(equal[i]),
            )
            for i in (named, *(i for i in by_reward if i != named))
        ),
        episodes=found.shape[1],
        doubt=doubt,
        resolved=_resolved(paired, out),
        exhausted=exhausted,
    )


def _resolved(paired: NDArray[np.float32], out: NDArray[np.bool_]) -> bool:
    """Whether one contender is left, or every difference is known to ``TIE``.

    Args:
      paired: float32[N, E, K], differences from the leader.
      out: bool[N], contenders that are certainly worse.
    """
    return int((~out).sum()) == 1 or float(_margin(paired[~out], CONFIDENCE).max()) <= TIE


def _margin(values: NDArray[np.float32], confidence: float) -> NDArray[np.float64]:
    """float64[N, K]: half-width of the interval of means over episodes of float32[N, E, K], by
    Student's t; infinite for a single episode, of which nothing is known, unless no two differ."""
    count = values.shape[1]
    if count == 1:
        return np.where(values[:, 0] == 0.0, 0.0, np.inf)
    quantile = float(stdtrit(count - 1, 0.5 + confidence / 2))
    return quantile * values.std(1, ddof=1) / math.sqrt(count)


def _mean_interval(values: NDArray[np.float32]) -> tuple[float, float, float]:
    """Mean of float32[E] and its 95 % interval."""
    mean = float(values.mean())
    half = float(_margin(values[None, :, None], CONFIDENCE)[0, 0])
    return mean, mean - half, mean + half


@functools.partial(jax.jit, static_argnums=1)
def _static_rollouts(
    env: ServeEnv, horizon: int, settings: jax.Array, keys: jax.Array, speeds: jax.Array
) -> jax.Array:
    def episode(env: ServeEnv, setting: jax.Array, key: jax.Array, speed: jax.Array) -> jax.Array:
        action = action_at(setting)
        slowed = env.replace(time_scale=speed * env.time_scale)
        return mean_reward(slowed, key, horizon, lambda _: action)

    return on_all_devices(episode, env, settings, keys, speeds)
