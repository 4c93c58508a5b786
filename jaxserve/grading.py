"""Grades of episodes by their actions, from 0 (random knobs) to 1 (an oracle).

A grade depends on (task, seed, actions) alone. The grader replays the actions on the task's own
traffic and objective; figures that a client states are compared but never used, and weights that a
client chose for its rewards change nothing.

The score puts the episode's mean reward per window on the task's frozen anchors, see
``jaxserve.tasks.anchors``. The mean is over the task's horizon. Windows that were not played earn
nothing and their GPUs still cost money, and they are never worth more than random knobs, so that
stopping early does not pay; windows past the horizon are ignored. No window played scores 0.

The breakdown is for information; every entry is a share in [0, 1], higher is better, and windows
that were not played count as failed. Requests whose fate is open when the whole horizon was played
(they wait or run, and are inside their objectives so far) count in no share:

| entry | share |
|---|---|
| throughput | of the requests that were completed |
| ttft | of the requests whose first token came within the TTFT objective |
| slo | of the requests that were completed within all objectives |
| memory | of the windows whose peak memory stayed within the task's limit |
| cost | value per dollar, relative to serving the expected traffic at full power |
| stability | of the windows in steady service |

Steady service means no GPU away for a switch or a restart, no out-of-memory crash, and at most a
tenth of the requests in service preempted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.episode_log import read_log, stated_figures, verify
from jaxserve.errors import InputError
from jaxserve.registry import make
from jaxserve.seeds import episode_key
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, check_knobs
from jaxserve.tasks.anchors import Anchors, anchors_score, load_anchors
from jaxserve.tasks.reward import compute_reward, reweight
from jaxserve.tasks.spec import load_task, task_names
from jaxserve.types import ServeAction, TimeStep, WindowMetrics

BREAKDOWN = ("throughput", "ttft", "slo", "memory", "cost", "stability")
_STEADY_CAPACITY = 0.999
_STORM = 0.1
"""Preempted share of the requests in service from which evictions count as a storm."""

Actions = ServeAction | Sequence[ServeAction | Mapping[str, object]]
"""Knobs window by window: a ServeAction of arrays [T], or a sequence of single actions."""


@dataclass(frozen=True)
class Grade:
    """Grade of an episode."""

    score: float
    """0 at random knobs, 0.5 at the best static setting, 1 at the oracle."""
    breakdown: dict[str, float]
    """shares by name, see the module."""
    feedback: str
    """feedback for a person, in one sentence."""
    goodput_rps: float
    """requests per second, over the horizon, that met all their objectives."""
    mean_reward: float
    """mean reward per window over the horizon, on the task's own objective."""
    steps: int
    """windows that were played and counted."""
    verified: bool | None
    """whether a log's figures are those of the replay; None where there were none to compare."""


@dataclass(frozen=True)
class _Episode:
    """A replay over the whole horizon; windows from ``steps`` on were not played."""

    env: ServeEnv
    anchors: Anchors
    timesteps: TimeStep
    """NumPy leaves [T, ...] of the episode."""
    steps: int


def grade_actions(
    task: str | int,
    seed: int,
    actions: Actions,
    split: str = "test",
    config: Mapping[str, Any] | None = None,
) -> Grade:
    """Grades the actions of one episode.

    Args:
      task: name or alias of a built-in task.
      seed: of the episode, see ``jaxserve.seeds.episode_key``.
      actions: one for each window that was played, from the first on.
      split: ``train``, ``validation`` or ``test``.
      config: weights that the episode was reset with; checked, and of no effect on the grade.

    Raises:
      InputError: unknown task or split, a task without anchors, a bad seed, action or config.
    """
    return _grade(_replay_episode(task, seed, actions, split, config), verified=None)


def grade_log(
    task: str | int,
    seed: int,
    episode_log: Sequence[Mapping[str, Any]],
    split: str = "test",
    config: Mapping[str, Any] | None = None,
) -> Grade:
    """Grades the log of an episode by its actions, and says whether its figures are true.

    Args:
      episode_log: see ``jaxserve.episode_log.read_log``.
      config: weights that the episode was reset with; the log's rewards are compared under them.
      task, seed, split: as ``grade_actions``.

    Raises:
      InputError: as ``grade_actions``; also a malformed log.
    """
    actions, stated = read_log(episode_log)
    episode = _replay_episode(task, seed, actions, split, config)
    seen = episode.timesteps
    if config:
        model = reweight(episode.env.reward, config)
        parts = jax.vmap(compute_reward, (None, 0, 0))(model, seen.metrics, seen.truncated)
        seen = replace(seen, parts=parts, reward=parts.total)
    return _grade(episode, verified=verify(stated[: episode.steps], stated_figures(seen)))


def replay_actions(task: str | int, seed: int, actions: Actions, split: str = "test") -> TimeStep:
    """The windows of one episode, computed again with all their metrics.

    Args:
      task, seed, actions, split: as ``grade_actions``.

    Returns:
      NumPy leaves [T, ...], one entry for each action up to the horizon.

    Raises:
      InputError: as ``grade_actions``.
    """
    episode = _replay_episode(task, seed, actions, split, config=None)
    return jax.tree.map(lambda leaf: leaf[: episode.steps], episode.timesteps)


def _replay_episode(
    task: str | int,
    seed: int,
    actions: Actions,
    split: str,
    config: Mapping[str, Any] | None,
) -> _Episode:
    spec = load_task(task)
    if spec.name not in task_names() or task not in (spec.name, spec.alias, str(spec.alias)):
        raise InputError(f"task {task!r} is not built in; only built-in tasks are graded")
    anchors = load_anchors(spec)
    env = make(spec)
    reweight(env.reward, {} if config is None else config)
    knobs, steps = _stack_actions(actions, spec.horizon)
    timesteps = jax.device_get(_replay(env, episode_key(seed, split), knobs))
    return _Episode(env=env, anchors=anchors, timesteps=timesteps, steps=steps)


def _stack_actions(actions: Actions, horizon: int) -> tuple[ServeAction, int]:
    """Actions [horizon], padded with the default, and how many of them were given."""
    if isinstance(actions, ServeAction):
        given = check_knobs(actions)
        if given["batch_cap"].ndim != 1:
            raise InputError(
                f"actions have shape {given['batch_cap'].shape}; a ServeAction of arrays must be "
                "one-dimensional, one entry a window"
            )
    elif isinstance(actions, Sequence) and not isinstance(actions, str | bytes):
        rows = [_single_action(action, i) for i, action in enumerate(actions[:horizon])]
        given = {knob: np.array([row[knob] for row in rows]) for knob in ACTION_BOUNDS}
    else:
        raise InputError(f"actions are a {type(actions).__name__}; they must be a list of actions")
    steps = min(len(given["batch_cap"]), horizon)
    padded = {}
    for knob, bound in ACTION_BOUNDS.items():
        values = np.full(horizon, DEFAULT_ACTION[knob], bound.dtype)
        values[:steps] = given[knob][:steps]
        padded[knob] = values
    return ServeAction(**padded), steps


def _single_action(action: ServeAction | Mapping[str, object], window: int) -> dict[str, float]:
    try:
        knobs = check_knobs(action)
    except InputError as error:
        raise InputError(f"window {window}: {error}") from None
    shape = knobs["batch_cap"].shape
    if shape:
        raise InputError(f"window {window}: the knobs have shape {shape}; they must be numbers")
    return {knob: float(value) for knob, value in knobs.items()}


@jax.jit
def _replay(env: ServeEnv, key: jax.Array, actions: ServeAction) -> TimeStep:
    """Every window's TimeStep, [T, ...]."""
    state, _ = env.reset(key)
    _, timesteps = jax.lax.scan(env.step, state, actions)
    return timesteps


def _grade(episode: _Episode, verified: bool | None) -> Grade:
    horizon = len(episode.timesteps.reward)
    mean_reward = _mean_reward(episode)
    score = anchors_score(episode.anchors, mean_reward) if episode.steps else 0.0
    good = float(_played(episode).good.sum())
    return Grade(
        score=score,
        breakdown=_breakdown(episode),
        feedback=_feedback(episode, score),
        goodput_rps=good / (horizon * episode.env.window_s),
        mean_reward=mean_reward,
        steps=episode.steps,
        verified=verified,
    )


def _mean_reward(episode: _Episode) -> float:
    rewards = np.asarray(episode.timesteps.reward, np.float64)
    nobody_served = -float(episode.env.reward.cost_weight)
    rewards[episode.steps :] = min(nobody_served, episode.anchors.random)
    return float(rewards.mean())


def _played(episode: _Episode) -> WindowMetrics:
    """Metrics of the windows that were played, float64[steps, ...] where they are reals."""
    return jax.tree.map(
        lambda leaf: leaf[: episode.steps].astype(
            leaf.dtype if np.issubdtype(leaf.dtype, np.integer) else np.float64
        ),
        episode.timesteps.metrics,
    )


def _breakdown(episode: _Episode) -> dict[str, float]:
    played, env = _played(episode), episode.env
    horizon = len(episode.timesteps.reward)
    decided = _decided(episode)
    # Running requests in time so far: at most the requests in time that are not yet good.
    in_time = played.ttft_met.sum()
    begun = min(
        _undecided(episode), played.running[-1:].sum(), max(in_time - played.good.sum(), 0.0)
    )
    worth = np.asarray(env.reward.value) * np.asarray(env.reward.quality)[played.tier]
    value = (worth * played.good).sum() / float(env.reward.expected_value)
    spent = played.cost_usd.sum() / float(env.reward.usd_scale)
    in_service = played.running.sum(axis=1) + played.completed.sum(axis=1)
    steady = (
        (played.capacity >= _STEADY_CAPACITY)
        & (played.oom == 0)
        & (played.preemptions <= _STORM * in_service)
    )
    within_limit = played.memory_gib <= float(env.reward.memory_limit_gib)
    shares = (
        played.completed.sum() / decided,
        in_time / (decided + begun),
        played.good.sum() / decided,
        within_limit.sum() / horizon,
        value / spent if spent else 0.0,
        steady.sum() / horizon,
    )
    return {
        name: float(np.clip(share, 0.0, 1.0)) for name, share in zip(BREAKDOWN, shares, strict=True)
    }


def _feedback(episode: _Episode, score: float) -> str:
    horizon = len(episode.timesteps.reward)
    if episode.steps == 0:
        return f"None of the {horizon} windows was played, so no request was served."
    decided, losses = _decided(episode), _losses(episode)
    cause = max(losses, key=lambda name: losses[name])
    goal = f"{_played(episode).good.sum() / decided:.0%} of {decided:,.0f} requests met their SLOs"
    if episode.steps < horizon:
        rest = f"only {episode.steps} of {horizon} windows were played"
    elif losses[cause] < 0.005 * decided:
        rest = "hardly any request was lost"
    else:
        rest = f"the largest loss is {losses[cause] / decided:.0%} that {cause}"
    return f"{_rank(score)}: {goal}; {rest}."


def _rank(score: float) -> str:
    if score >= 1.0:
        return "As good as the oracle"
    if score > 0.5:
        return "Better than the best static setting"
    if score > 0.0:
        return "Between random knobs and the best static setting"
    return "No better than random knobs"


def _losses(episode: _Episode) -> dict[str, float]:
    """Requests by the reason why they met no SLO."""
    played = _played(episode)
    late = float((played.first_tokens - played.ttft_met).sum())
    completed = float(played.completed.sum())
    rejected, lost = float(played.rejected.sum()), float(played.lost.sum())
    return {
        "a full queue rejected": rejected,
        "an out-of-memory restart lost": lost,
        "waited too long for their first token": late,
        "got their tokens too slowly": completed - float(played.good.sum()) - late,
        "were never finished": float(played.arrivals.sum())
        - completed
        - rejected
        - lost
        - _undecided(episode),
    }


def _decided(episode: _Episode) -> float:
    """Requests of the whole horizon whose fate is known, at least one."""
    arrivals = float(np.sum(episode.timesteps.metrics.arrivals, dtype=np.float64))
    return max(arrivals - _undecided(episode), 1.0)


def _undecided(episode: _Episode) -> float:
    """Requests inside their objectives so far that wait or run at the horizon; 0 where windows were
    not played, so that all requests have failed."""
    if episode.steps < len(episode.timesteps.reward):
        return 0.0
    last = jax.tree.map(lambda leaf: leaf[-1], _played(episode))
    return max(float((last.waiting + last.running - last.overdue).sum()), 0.0)
