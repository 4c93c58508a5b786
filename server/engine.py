"""The compiled programs: start an episode, advance one session, advance many at once.

Every program is compiled once for all tasks. A window computed by ``advance`` is that of
``jax.jit(env.step)`` bit by bit; one computed by ``advance_many`` may differ from it in the last
bit, but not with the number of sessions that happen to be advanced together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import EnvState, ServeEnv
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, OBSERVATION_BOUNDS
from jaxserve.types import RewardParts, ServeAction, TimeStep
from server.episodes import Episode

PART_NAMES = tuple(RewardParts.__dataclass_fields__)
BATCH_SIZES = (8, 64, 256)
"""Sessions that one compiled program advances; smaller groups are padded."""

Knobs = tuple[float, ...]
"""One action: a number for each of ``jaxserve.KNOBS``, in their order."""


@dataclass(frozen=True, slots=True)
class Window:
    """What one window, or a reset, showed: plain Python numbers."""

    observation: dict[str, Any]
    """fields of ServeObservation; ``priority_distribution`` is a list of three."""
    reward: float
    done: bool
    parts: dict[str, float]
    """the terms of the reward, by name."""
    completed: float
    """requests that were completed in the window."""
    good: float
    """those of them that met all their objectives."""
    failed: float
    """requests that ended in the window without meeting their objectives."""


@dataclass(frozen=True, slots=True)
class Lane:
    """The state of one session inside a batch that was advanced together."""

    batch: EnvState
    """leaves [B, ...]."""
    index: int


State = EnvState | Lane

_reset = jax.jit(ServeEnv.reset)
_step = jax.jit(ServeEnv.step)
_step_many = jax.jit(jax.vmap(ServeEnv.step, in_axes=(None, 0, 0)))


def start(episode: Episode) -> tuple[EnvState, Window]:
    """The state and the idle observation an episode begins with."""
    state, timestep = _reset(episode.environment(), episode.key())
    return state, read_windows(timestep, None)[0]


def advance(env: ServeEnv, state: State, knobs: Knobs) -> tuple[EnvState, TimeStep]:
    """One window of one session; ``read_windows(timestep, None)`` reads the result.

    Args:
      env: without a name, see ``Episode.environment``.
      knobs: checked, see ``jaxserve.spaces``.
    """
    return _step(env, _unbatched(state), _action(knobs))


def advance_many(
    env: ServeEnv, states: Sequence[State], knobs: Sequence[Knobs]
) -> tuple[list[Lane], TimeStep]:
    """One window of each of up to ``BATCH_SIZES[-1]`` sessions of one environment.

    Returns:
      their states, and the TimeStep with a leading axis for ``read_windows(timestep, count)``.
    """
    count = len(states)
    size = next(size for size in BATCH_SIZES if size >= count)
    batch, timestep = _step_many(env, _batched(states, size), stack_knobs(knobs, size))
    return [Lane(batch, index) for index in range(count)], timestep


def read_windows(timestep: TimeStep, count: int | None) -> list[Window]:
    """The first ``count`` windows of a TimeStep with a leading axis; None: one without."""

    def column(leaf: jax.Array | np.ndarray) -> list[Any]:
        array = np.asarray(leaf)
        return [array.tolist()] if count is None else array[:count].tolist()

    def total(leaf: np.ndarray) -> list[float]:
        sums = leaf.sum(axis=-1, dtype=np.float64)
        return [float(sums)] if count is None else sums[:count].tolist()

    metrics = timestep.metrics
    completed, good = np.asarray(metrics.completed), np.asarray(metrics.good)
    turned_away = np.asarray(metrics.rejected) + np.asarray(metrics.lost)
    seen = [column(getattr(timestep.observation, name)) for name in OBSERVATION_BOUNDS]
    parts = [column(getattr(timestep.parts, name)) for name in PART_NAMES]
    rows = zip(
        zip(*seen, strict=True),
        zip(*parts, strict=True),
        column(timestep.reward),
        column(np.asarray(timestep.truncated) | np.asarray(timestep.terminated)),
        total(completed),
        total(good),
        total(completed - good + turned_away),
        strict=True,
    )
    return [
        Window(
            observation=dict(zip(OBSERVATION_BOUNDS, seen, strict=True)),
            reward=reward,
            done=done,
            parts=dict(zip(PART_NAMES, terms, strict=True)),
            completed=served,
            good=met,
            failed=failed,
        )
        for seen, terms, reward, done, served, met, failed in rows
    ]


def knobs_of(action: Mapping[str, float]) -> Knobs:
    """A checked action as the engine and the log have it."""
    return tuple(float(action[knob]) for knob in KNOBS)


def stack_knobs(knobs: Sequence[Knobs], size: int) -> ServeAction:
    """A ServeAction of arrays [size]; where there are fewer the last is repeated."""
    columns = np.asarray(knobs, np.float64).reshape(-1, len(KNOBS)).T
    return _action(np.pad(columns, ((0, 0), (0, size - len(knobs))), mode="edge"))


def _action(values: Any) -> ServeAction:
    """A ServeAction of six numbers or columns, in the types that the programs were compiled for."""
    typed: dict[str, Any] = {
        knob: np.asarray(value, np.int32 if ACTION_BOUNDS[knob].integer else np.float32)
        for knob, value in zip(KNOBS, values, strict=True)
    }
    return ServeAction(**typed)


def _unbatched(state: State) -> EnvState:
    if isinstance(state, EnvState):
        return state
    return jax.tree.map(lambda leaf: leaf[state.index], state.batch)


def _batched(states: Sequence[State], size: int) -> EnvState:
    """States [size]; those that were advanced together stay together without a copy."""
    first = states[0]
    if isinstance(first, Lane) and first.batch.step.shape == (size,):
        together = all(
            isinstance(state, Lane) and state.batch is first.batch and state.index == index
            for index, state in enumerate(states)
        )
        if together:
            return first.batch
    rows = [_host_leaves(state) for state in states]
    rows += [rows[-1]] * (size - len(rows))
    stacked = [np.stack(column) for column in zip(*rows, strict=True)]
    shape = first.batch if isinstance(first, Lane) else first
    leaves, structure = jax.tree.flatten(shape)
    wrapped = [
        jax.random.wrap_key_data(jnp.asarray(array)) if _is_key(leaf) else array
        for array, leaf in zip(stacked, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, wrapped)


def _host_leaves(state: State) -> list[np.ndarray]:
    batch, index = (state.batch, state.index) if isinstance(state, Lane) else (state, ...)
    leaves = [jax.random.key_data(x) if _is_key(x) else x for x in jax.tree.leaves(batch)]
    return [np.asarray(leaf)[index] for leaf in leaves]


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
