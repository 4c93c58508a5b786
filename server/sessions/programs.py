"""The compiled programs: start an episode, advance one session, advance many together.

JAX compiles a program for each structure of tasks at its first call. ``server.sessions.compiling``
makes that call in its own thread, so that no client waits for it. A ``Simulator`` is an environment
as programs take it.

A window computed by ``advance`` equals that of ``jax.jit(env.step)`` bit by bit. A window computed
by ``advance_together`` may differ from it in the last bit, but not with the other sessions of the
call. XLA rounds differently for different batch sizes, so there is one size for all.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import EnvState, ServeEnv
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS, OBSERVATION_BOUNDS
from jaxserve.types import RewardParts, ServeAction, ServeObservation, TimeStep, WindowMetrics
from server.sessions.episodes import CACHED_ENVIRONMENTS, Episode, environment
from server.sessions.packing import Packed, Packing

PART_NAMES = tuple(RewardParts.__dataclass_fields__)
BATCH_SIZE = 64
"""Batch size of ``advance_together``; smaller groups are padded."""

Knobs = tuple[float, ...]
"""One action: a number for each of ``jaxserve.KNOBS``, in their order."""


class Window(NamedTuple):
    """Results of one window or of a reset, as plain Python numbers."""

    observation: dict[str, Any]
    """fields of ServeObservation; ``priority_distribution`` is a list of three."""
    reward: float
    done: bool
    parts: dict[str, float]
    """terms of the reward, by name."""
    completed: float
    """requests completed in the window."""
    good: float
    """completed requests that met all their objectives."""
    failed: float
    """requests that ended in the window and missed an objective."""
    figures: dict[str, float] = {}  # noqa: RUF012
    """see ``window_figures``; empty in logs of earlier versions."""


class WindowColumns(NamedTuple):
    """Windows of B sessions: each field of ``Window`` as a list [B]."""

    observation: dict[str, list[Any]]
    reward: list[float]
    done: list[bool]
    parts: dict[str, list[float]]
    completed: list[float]
    good: list[float]
    failed: list[float]
    figures: dict[str, list[float]]

    def only(self, index: int) -> WindowColumns:
        """The columns of one session."""
        return WindowColumns(*[_only(column, index) for column in self])

    def of(self, index: int) -> Window:
        """The window of one session."""
        return Window(*[_entry(column, index) for column in self])


def concatenated(windows: Sequence[WindowColumns], order: Sequence[int]) -> WindowColumns:
    """All entries of ``windows``, permuted: place i holds entry ``order[i]``."""
    in_order = all(place == index for place, index in enumerate(order))
    chosen = None if in_order else order
    return WindowColumns(
        *[_concatenated(columns, chosen) for columns in zip(*windows, strict=True)]
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Shown:
    """Output of a program: the fields of a TimeStep that make a Window, all float32."""

    observation: ServeObservation
    parts: RewardParts
    reward: jax.Array
    done: jax.Array
    completed: jax.Array
    """[F] by traffic class, as the two below."""
    good: jax.Array
    turned_away: jax.Array
    figures: dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class _Layout:
    """Packings of a program's inputs and outputs. Each structure of tasks has one layout, and each
    layout one program; layouts compare by identity, since every call of a program hashes one."""

    env: Packing[ServeEnv]
    state: Packing[EnvState]
    shown: Packing[_Shown]
    columns: _Shown
    """index of each number of ``shown`` in its vector."""


@dataclass(frozen=True, eq=False)
class Simulator:
    """An environment as programs take it."""

    env: ServeEnv
    layout: _Layout
    vector: Packed
    """``env``, packed."""


class Lane(NamedTuple):
    """The state of one session in a batch that was advanced together."""

    batch: Packed
    """[B, n]."""
    index: int


_COMPILED: set[tuple[_Layout, bool]] = set()
"""Compiled programs: ``advance`` of a layout with False, ``advance_together`` with True."""

_LAYOUTS = threading.Lock()

State = Packed | Lane
"""An EnvState: a vector [n], or an entry of a batch."""


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """Output of one call of a program; ``read_windows`` waits for it."""

    layout: _Layout
    vector: Packed
    count: int | None
    """sessions, which the leading axis may exceed; None: one session, without that axis."""


def simulator(episode: Episode) -> Simulator:
    """The episode's environment; episodes of one task and config share it."""
    return _simulator(episode.task, episode.config)


def start(episode: Episode) -> tuple[State, WindowColumns]:
    """The first state and observation of an episode; columns of one entry."""
    return _begin(simulator(episode), episode.key())


def advance(simulator: Simulator, state: State, knobs: Knobs) -> tuple[State, ProgramOutput]:
    """One window of one session.

    Args:
      knobs: a checked action, see ``jaxserve.spaces``.
    """
    action = np.asarray(knobs, np.float32)
    state, shown = _step(simulator.layout, simulator.vector, _alone(state), action)
    _COMPILED.add((simulator.layout, False))
    return state, ProgramOutput(simulator.layout, shown, None)


def advance_together(
    simulator: Simulator, states: Sequence[State], knobs: Sequence[Knobs]
) -> tuple[list[Lane], ProgramOutput]:
    """One window of each of up to ``BATCH_SIZE`` sessions of one environment.

    Returns:
      Their states, and the output of the program.
    """
    count = len(states)
    actions = np.asarray([*knobs, *[knobs[-1]] * (BATCH_SIZE - count)], np.float32)
    batch, shown = _step_together(simulator.layout, simulator.vector, _batched(states), actions)
    _COMPILED.add((simulator.layout, True))
    lanes = [Lane(batch, index) for index in range(count)]
    return lanes, ProgramOutput(simulator.layout, shown, count)


def is_compiled(simulator: Simulator, *, together: bool) -> bool:
    """Whether sessions of a structure can be begun and advanced without compilation.

    Args:
      together: by ``advance_together``, instead of by ``advance``.
    """
    return (simulator.layout, together) in _COMPILED


def try_out(simulator: Simulator, *, together: bool) -> None:
    """Begins a session and advances it, which compiles the programs.

    Args:
      together: as ``is_compiled``.
    """
    state, _ = _begin(simulator, jax.random.key(0))
    knobs = knobs_of(DEFAULT_ACTION)
    if together:
        advance_together(simulator, [state], [knobs])
    else:
        advance(simulator, state, knobs)


def window_figures(env: ServeEnv, metrics: WindowMetrics) -> dict[str, jax.Array]:
    """Figures of a window beside its observation, float32 scalars by name.

    ``first_tokens``, ``decoding``, ``ended`` and ``good`` are the requests that shares, latencies
    and costs of the window rest on; ``ttft_met`` are the first tokens inside the SLO of their own
    class; ``worth_ended`` and ``worth_good`` count requests by their worth. ``p99_itl_ms`` is 0
    where a real engine was measured. ``mean_output_tokens`` is of the completed requests.
    """
    value, outputs = env.reward.value, env.workload.classes.output_tokens
    completed = jnp.sum(metrics.completed)
    ended = metrics.completed + metrics.rejected + metrics.lost
    return {
        "first_tokens": jnp.sum(metrics.first_tokens),
        "ttft_met": jnp.sum(metrics.ttft_met),
        "decoding": completed + jnp.sum(metrics.running),
        "ended": jnp.sum(ended),
        "good": jnp.sum(metrics.good),
        "worth_ended": jnp.sum(value * ended),
        "worth_good": jnp.sum(value * metrics.good),
        "p99_itl_ms": 1000.0 * metrics.p99_itl_s,
        "mean_output_tokens": jnp.sum(metrics.completed * outputs) / jnp.maximum(completed, 1e-9),
    }


def read_windows(outcome: ProgramOutput) -> WindowColumns:
    """Windows of the sessions of a call; waits for it."""
    vector = np.asarray(outcome.vector)
    return _read(outcome.layout, vector[None] if outcome.count is None else vector[: outcome.count])


def read_in_turn(outcomes: Sequence[tuple[ProgramOutput, int]]) -> WindowColumns:
    """One window of each of several outputs of one environment, at least one.

    Args:
      outcomes: outputs, each with the session's place in it.
    """
    rows = [
        np.asarray(outcome.vector) if outcome.count is None else np.asarray(outcome.vector)[place]
        for outcome, place in outcomes
    ]
    return _read(outcomes[0][0].layout, np.stack(rows))


def _read(layout: _Layout, rows: np.ndarray) -> WindowColumns:
    """Args: words [B, n]."""
    numbers, at = rows.view(np.float32), layout.columns
    # One conversion to Python numbers: one per field takes ten times as long.
    columns = numbers.T.tolist()

    def classes(places: Any) -> np.ndarray:
        return numbers[:, places[0] : places[-1] + 1]

    def total(values: np.ndarray) -> list[float]:
        return values.sum(axis=-1, dtype=np.float64).tolist()

    completed, good = classes(at.completed), classes(at.good)
    return WindowColumns(
        observation={
            name: _column(columns, getattr(at.observation, name)) for name in OBSERVATION_BOUNDS
        },
        reward=_column(columns, at.reward),
        done=[number != 0.0 for number in _column(columns, at.done)],
        parts={name: _column(columns, getattr(at.parts, name)) for name in PART_NAMES},
        completed=total(completed),
        good=total(good),
        failed=total(completed - good + classes(at.turned_away)),
        figures={name: columns[place] for name, place in at.figures.items()},
    )


def _column(columns: list[list[float]], place: Any) -> list[Any]:
    """The entries of a field: numbers, or lists if the field is a vector."""
    if isinstance(place, int):
        return columns[place]
    return [list(row) for row in zip(*(columns[each] for each in place), strict=True)]


def knobs_of(action: Mapping[str, float]) -> Knobs:
    """A checked action as programs and the log take it."""
    return tuple(float(action[knob]) for knob in KNOBS)


def stack_knobs(knobs: Sequence[Knobs]) -> ServeAction:
    """A ServeAction of arrays [len(knobs)]."""
    return _action(np.asarray(knobs, np.float64).reshape(-1, len(KNOBS)))


def _begin(simulator: Simulator, key: jax.Array) -> tuple[State, WindowColumns]:
    state, shown = _reset(simulator.layout, simulator.vector, jax.random.key_data(key))
    return state, read_windows(ProgramOutput(simulator.layout, shown, None))


def _entry(column: Any, index: int) -> Any:
    if isinstance(column, dict):
        return {name: values[index] for name, values in column.items()}
    return column[index]


def _only(column: Any, index: int) -> Any:
    if isinstance(column, dict):
        return {name: values[index : index + 1] for name, values in column.items()}
    return column[index : index + 1]


def _concatenated(columns: Sequence[Any], order: Sequence[int] | None) -> Any:
    if isinstance(columns[0], dict):
        return {
            name: _concatenated([column[name] for column in columns], order) for name in columns[0]
        }
    joined = list(itertools.chain.from_iterable(columns))
    return joined if order is None else [joined[index] for index in order]


def _action(values: Any) -> ServeAction:
    """An action from an array [..., 6] in the order of the knobs."""
    typed: dict[str, Any] = {
        knob: values[..., place].astype(ACTION_BOUNDS[knob].dtype)
        for place, knob in enumerate(KNOBS)
    }
    return ServeAction(**typed)


@functools.partial(jax.jit, static_argnums=0)
def _pack(packing: Packing, tree: Any) -> Packed:
    return packing.pack(tree)


@functools.partial(jax.jit, static_argnums=0)
def _reset(layout: _Layout, env: Packed, key_data: jax.Array) -> tuple[Packed, Packed]:
    own = layout.env.unpack(env)
    return _packed(layout, own, own.reset(jax.random.wrap_key_data(key_data)))


def _advanced(
    layout: _Layout, env: Packed, state: Packed, action: jax.Array
) -> tuple[Packed, Packed]:
    own = layout.env.unpack(env)
    return _packed(layout, own, own.step(layout.state.unpack(state), _action(action)))


_step = jax.jit(_advanced, static_argnums=0)


@functools.partial(jax.jit, static_argnums=0)
def _step_together(
    layout: _Layout, env: Packed, states: Packed, actions: jax.Array
) -> tuple[Packed, Packed]:
    return jax.vmap(functools.partial(_advanced, layout, env))(states, actions)


def _packed(
    layout: _Layout, env: ServeEnv, outcome: tuple[EnvState, TimeStep]
) -> tuple[Packed, Packed]:
    state, timestep = outcome
    return layout.state.pack(state), layout.shown.pack(_shown(env, timestep))


def _shown(env: ServeEnv, timestep: TimeStep) -> _Shown:
    metrics = timestep.metrics
    return _Shown(
        observation=timestep.observation,
        parts=timestep.parts,
        reward=timestep.reward,
        done=(timestep.truncated | timestep.terminated).astype(jnp.float32),
        completed=metrics.completed,
        good=metrics.good,
        turned_away=metrics.rejected + metrics.lost,
        figures=window_figures(env, metrics),
    )


@functools.lru_cache(maxsize=CACHED_ENVIRONMENTS)
def _simulator(task: str, config: str) -> Simulator:
    env = environment(task, config)
    packing = Packing.of(env)
    # A second layout of the same structure would mean a second compilation.
    with _LAYOUTS:
        layout = _layout(packing)
    return Simulator(env, layout, _pack(packing, env))


@functools.cache
def _layout(env: Packing[ServeEnv]) -> _Layout:
    def begun(vector: Packed) -> tuple[EnvState, _Shown]:
        own = env.unpack(vector)
        state, timestep = own.reset(jax.random.key(0))
        return state, _shown(own, timestep)

    state, shown = jax.eval_shape(begun, env.shape)
    packing = Packing.of(shown)
    return _Layout(env, Packing.of(state), packing, packing.places())


def _alone(state: State) -> Packed:
    return np.asarray(state.batch)[state.index] if isinstance(state, Lane) else state


def _batched(states: Sequence[State]) -> Packed:
    """Vectors [BATCH_SIZE, n]; an unchanged group of sessions is not copied."""
    first = states[0]
    if isinstance(first, Lane):
        in_place = all(
            isinstance(state, Lane) and state.batch is first.batch and state.index == index
            for index, state in enumerate(states)
        )
        if in_place:
            return first.batch
    rows = [_alone(state) for state in states]
    return np.stack(rows + [rows[-1]] * (BATCH_SIZE - len(rows)))
