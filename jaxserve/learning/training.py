"""Training runs: chunks of compiled updates with a bar, metrics and checkpoints between them.

A run is a directory: ``run.json`` with what it was begun with, ``checkpoints/``, ``metrics.csv``
with a row for every update and seed, and at the end the weights of the seed that did best on
validation episodes. Because an update draws from its own number, a resumed run is the run that was
never interrupted, bit by bit. Several processes share one run; the first prints and writes, all of
them write their part of a checkpoint.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jaxserve.agents.network import NetworkPolicy
from jaxserve.agents.rule_advice import AdvisingRule
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.agents.weights import save_weights
from jaxserve.errors import InputError
from jaxserve.evaluation.held_out import evaluate
from jaxserve.learning.distributed import exchanged, is_first, together
from jaxserve.learning.ppo import Learner, TrainState, UpdateReport
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.run_directory import (
    EventFiles,
    Row,
    check_description,
    claim,
    read_description,
    read_metrics,
    write_metrics,
)
from jaxserve.learning.run_options import Seeds, check_place, describe, provenance
from jaxserve.tasks.anchors import anchors_score

VALIDATION_EPISODES = 64
_CHUNK_S = 2.0  # between two looks at a running program
_CHECKPOINT_S = 30.0

Watcher = Callable[["TrainingStatus"], None]


@dataclass(frozen=True)
class TrainingStatus:
    """Status of a run."""

    windows: int
    """windows played by each seed."""
    total: int
    windows_per_s: float
    """windows per second of all seeds together, compilation left out."""
    reward: float
    """mean over the seeds, of policies that still explore."""
    score: float | None
    """score of that reward; None without anchors."""


@dataclass(frozen=True)
class TrainingResult:
    """Result of a finished run."""

    directory: Path
    seeds: Seeds
    objectives: tuple[float, ...]
    """mean reward of each seed's final policy on validation episodes."""
    episodes: int
    """episodes in this mean."""
    best: int
    """index of the seed whose weights were written."""
    compile_s: float
    train_s: float


class Interrupted(Exception):
    """The interruption of a run whose state is saved."""


def train(
    setup: TaskSetup,
    config: PPOConfig,
    seeds: Seeds,
    directory: Path,
    *,
    resume: bool = False,
    tensorboard: bool = False,
    watch: Watcher | None = None,
) -> TrainingResult:
    """Trains one policy per seed, all in one program.

    Args:
      directory: of the run; must be new or empty, unless ``resume``. All processes must see it.
      tensorboard: write event files as well, in ``directory / "tensorboard"``.
      watch: told about the progress every few seconds.

    Raises:
      InputError: sizes that do not fit, a directory in use or that ``check_place`` refuses, nothing
        to resume, or a run that was begun with something else; or a loss that is no number, after
        which the last checkpoint stands.
      Interrupted: by Ctrl-C, after a checkpoint.
    """
    learner = learner_for(setup, config)
    description = describe(setup, config, seeds)
    with together():
        event_files = EventFiles(directory) if tensorboard and is_first() else nullcontext()
        if is_first():
            check_place(directory)
        if is_first() and not resume:
            claim(directory, description)
    with together():
        nothing = "there is no run to resume" if resume else "all processes must see one directory"
        check_description(directory, read_description(directory, nothing), description)
    state = jax.jit(jax.vmap(lambda seed: learner.init(jax.random.key(seed))))(np.array(seeds))
    kept = ocp.CheckpointManagerOptions(max_to_keep=2)
    with (
        ocp.CheckpointManager((directory / "checkpoints").absolute(), options=kept) as checkpoints,
        event_files as events,
    ):
        state, rows = _restore(checkpoints, state, directory, seeds)
        run = _Run(setup, config, seeds, directory, checkpoints, state, rows, events)
        started = time.perf_counter()
        update = jax.jit(jax.vmap(learner.update)).lower(state).compile()
        compile_s = time.perf_counter() - started
        train_s = run.to_the_end(update, watch)
    policies = split_seeds(jax.device_get(learner.policy(run.state)), seeds)
    found = (evaluate(setup, policy, VALIDATION_EPISODES, "validation") for policy in policies)
    objectives = [float(each.statistics.objective.mean()) for each in found]
    best = int(np.argmax(objectives))
    if is_first():
        made = provenance(setup, config, seeds, best, objectives[best], VALIDATION_EPISODES)
        save_weights(directory, policies[best], setup.spec, made)
    return TrainingResult(
        directory,
        seeds,
        tuple(objectives),
        VALIDATION_EPISODES,
        best,
        compile_s=compile_s,
        train_s=train_s,
    )


def learner_for(setup: TaskSetup, config: PPOConfig) -> Learner:
    """The learner of a task; for a fleet it starts from the best rule of the task's anchors."""
    rule = AdvisingRule.of_anchors(setup.anchors)
    return Learner.create(setup.training_env, config, rule=rule)


def split_seeds(policies: NetworkPolicy, seeds: Seeds) -> tuple[NetworkPolicy, ...]:
    """The policy of each seed, from stacked ones."""
    return tuple(
        jax.tree.map(lambda leaf, i=index: leaf[i], policies) for index in range(len(seeds))
    )


def restored(checkpoints: ocp.CheckpointManager, update: int, like: Any) -> TrainState:
    """The state after an update, as a checkpoint has it.

    Args:
      like: its shapes, types and shardings.

    Raises:
      InputError: the checkpoint cannot be read.
    """
    try:
        return checkpoints.restore(update, args=ocp.args.StandardRestore(like))  # type: ignore
    except Exception as error:  # damaged files raise errors of many kinds, plain ones among them
        raise InputError(
            f"the checkpoint of update {update} in {checkpoints.directory} cannot be read "
            f"({type(error).__name__}); train again in another --out"
        ) from error


@dataclass
class _Run:
    """A run in progress."""

    setup: TaskSetup
    config: PPOConfig
    seeds: Seeds
    directory: Path
    checkpoints: ocp.CheckpointManager
    state: TrainState
    """states of all seeds, leaves [seeds, ...]."""
    rows: list[Row]
    events: EventFiles | None

    @property
    def done(self) -> int:
        """Updates finished."""
        return int(np.asarray(self.state.update)[0])

    def to_the_end(self, update: Callable[..., Any], watch: Watcher | None) -> float:
        """Updates, looks, saves; returns the seconds that it took."""
        begun = self.done
        started = looked = saved = time.perf_counter()
        # One update is measured, then as many as fill the time between two looks are run.
        at_once = 1
        with _interrupts() as interrupted:
            while self.done < self.config.updates:
                state, reports = self.state, []
                for _ in range(min(at_once, self.config.updates - self.done)):
                    # Updates that wait in a queue can deadlock: all cores are held by devices
                    # that meet in a sum over devices, and none is left for those they wait for.
                    state, report = jax.block_until_ready(update(state))
                    reports.append(report)
                self._keep(state, reports)
                now = time.perf_counter()
                if watch:
                    watch(self._progress(self.done - begun, now - started))
                pace = max(1, round(len(reports) * _CHUNK_S / max(now - looked, 1e-3)))
                told = exchanged(pace, now - saved > _CHECKPOINT_S, interrupted())
                at_once, looked = int(told[0, 0]), now
                if told[0, 1] or told[:, 2].any():
                    self.save()
                    saved = now
                if told[:, 2].any() and self.done < self.config.updates:
                    raise Interrupted(
                        f"stopped after update {self.done} of {self.config.updates}; "
                        "continue with --resume"
                    )
        if self.done > begun:
            self.save()
        return time.perf_counter() - started

    def save(self) -> None:
        """Writes the metrics and a checkpoint."""
        if is_first():
            # Before the checkpoint: a resumed run drops rows that are too many.
            write_metrics(self.directory, self.rows)
        if self.done and self.checkpoints.latest_step() != self.done:
            self.checkpoints.save(self.done, args=ocp.args.StandardSave(self.state))  # type: ignore
            self.checkpoints.wait_until_finished()
        if self.events:
            self.events.extend(self.rows)

    def _keep(self, state: TrainState, reports: list[UpdateReport]) -> None:
        """Takes updates over, unless one of them diverged."""
        rows = []
        for offset, report in enumerate(reports):
            values = {name: np.asarray(column) for name, column in vars(report).items()}
            for index, seed in enumerate(self.seeds):
                row = {name: float(column[index]) for name, column in values.items()}
                number = self.done + offset + 1
                bad = [name for name, value in row.items() if not np.isfinite(value)]
                if bad:
                    self.save()
                    raise InputError(
                        f"{bad[0]} of seed {seed} is {row[bad[0]]} in update {number}: training "
                        f"has diverged; the last good state is update {self.done}"
                    )
                windows = number * self.config.windows
                rows.append({"update": number, "windows": windows, "seed": seed} | row)
        self.state = state
        self.rows += rows

    def _progress(self, updates: int, seconds: float) -> TrainingStatus:
        size = self.config.windows
        reward = float(np.mean([row["reward"] for row in self.rows[-len(self.seeds) :]]))
        anchors = self.setup.anchors
        return TrainingStatus(
            windows=self.done * size,
            total=self.config.updates * size,
            windows_per_s=updates * size * len(self.seeds) / seconds,
            reward=reward,
            score=None if anchors is None else anchors_score(anchors, reward),
        )


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C in the block waits to be asked for; a second one does not wait.

    Yields:
      a function that says whether it was pressed.
    """
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # others hear no signals
        yield pressed.is_set
        return

    def note(*_: Any) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _restore(
    checkpoints: ocp.CheckpointManager, state: TrainState, directory: Path, seeds: Seeds
) -> tuple[TrainState, list[Row]]:
    """The last checkpoint and the metrics up to it; the start where there is none yet."""
    step = checkpoints.latest_step()
    if step is None:
        return state, []
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    return restored(checkpoints, step, like), read_metrics(directory, step, seeds)
