"""Training runs: chunks of compiled updates with a bar, metrics and checkpoints between them.

A run is a directory: ``checkpoints/``, ``metrics.csv`` with a row for every update and seed,
``run.json`` with the settings, and at the end the weights of the seed that did best on validation
episodes. Because an update draws from its own number, a resumed run is the run that was never
interrupted, bit by bit. Several processes share one run; the first prints and writes, all of them
write their part of a checkpoint.
"""

from __future__ import annotations

import dataclasses
import signal
import subprocess
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

from jaxserve.agents.evaluation import evaluate
from jaxserve.agents.panel import Setting
from jaxserve.agents.ppo import Learner, PPOConfig, Report, TrainState
from jaxserve.agents.processes import exchanged, is_first, together
from jaxserve.agents.run_directory import (
    EventFiles,
    Row,
    check_settings,
    claim,
    read_metrics,
    write_metrics,
)
from jaxserve.agents.weights import save_weights
from jaxserve.errors import InputError
from jaxserve.tasks.anchors import anchors_score

VALIDATION_EPISODES = 64
_CHUNK_S = 2.0  # between two looks at a running program
_CHECKPOINT_S = 30.0

Watcher = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Where a run is."""

    windows: int
    """played by each seed."""
    total: int
    windows_per_s: float
    """of all seeds together, compilation left out."""
    reward: float
    """mean over the seeds, of policies that still explore."""
    score: float | None
    """what that is worth; None without anchors."""


@dataclass(frozen=True)
class TrainingResult:
    """A finished run."""

    directory: Path
    seeds: tuple[int, ...]
    objectives: tuple[float, ...]
    """mean reward of each seed's final policy on validation episodes."""
    episodes: int
    """that this is the mean of."""
    best: int
    """index of the seed whose weights were written."""
    compile_s: float
    train_s: float


class Interrupted(Exception):
    """The run was stopped; its state is saved."""


def check_run(
    steps: int,
    seed: int,
    seeds: int,
    environments: int,
    learning_rate: float,
    discount: float,
    recurrent: bool = False,
) -> PPOConfig:
    """The configuration of a run of ``steps`` windows a seed, rounded up to whole updates.

    Advantages look a third as far ahead as the discount does.

    Raises:
      InputError: a number out of range.
    """
    for name, value, low, high in (
        ("steps", steps, 1, 10**12),
        ("seeds", seeds, 1, 1024),
        ("seed", seed, 0, 2**31 - seeds),
        ("environments", environments, 8, 2**20),
        ("learning_rate", learning_rate, 1e-8, 1.0),
        ("discount", discount, 0.5, 0.9999),
    ):
        if not low <= value <= high:
            raise InputError(f"{name} is {value}; it must be from {low} to {high}")
    config = PPOConfig(
        learning_rate=learning_rate,
        discount=discount,
        gae_lambda=1.0 - min(3.0 * (1.0 - discount), 1.0),
        environments=environments,
        recurrent=recurrent,
    )
    return dataclasses.replace(config, updates=-(-steps // config.windows))


def train(
    setting: Setting,
    config: PPOConfig,
    seeds: tuple[int, ...],
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
      InputError: sizes that do not fit, a directory in use, nothing to resume or other settings
        than the run that is resumed; or a loss that is no number, after which the last checkpoint
        stands.
      Interrupted: by Ctrl-C, after a checkpoint.
    """
    learner = Learner.create(setting.env, config)
    settings = _describe(setting, config, seeds)
    with together():
        event_files = EventFiles(directory) if tensorboard and is_first() else nullcontext()
        if is_first() and not resume:
            claim(directory, settings)
    with together():
        nothing = "there is no run to resume" if resume else "all processes must see one directory"
        check_settings(directory, settings, nothing)
    state = jax.jit(jax.vmap(lambda seed: learner.init(jax.random.key(seed))))(np.array(seeds))
    kept = ocp.CheckpointManagerOptions(max_to_keep=2)
    with (
        ocp.CheckpointManager((directory / "checkpoints").absolute(), options=kept) as checkpoints,
        event_files as events,
    ):
        state, rows = _restore(checkpoints, state, directory)
        run = _Run(setting, config, seeds, directory, checkpoints, state, rows, events)
        started = time.perf_counter()
        update = jax.jit(jax.vmap(learner.update)).lower(state).compile()
        compile_s = time.perf_counter() - started
        train_s = run.to_the_end(update, watch)
    policies = jax.device_get(learner.policy(run.state))
    objectives = []
    for index in range(len(seeds)):
        policy = jax.tree.map(lambda leaf, i=index: leaf[i], policies)
        found = evaluate(setting, policy, VALIDATION_EPISODES, "validation")
        objectives.append(float(found.statistics.objective.mean()))
    best = int(np.argmax(objectives))
    if is_first():
        provenance = _provenance(setting, config, seeds[best], objectives[best])
        policy = jax.tree.map(lambda leaf: leaf[best], policies)
        save_weights(directory, policy, setting.spec, provenance)
    return TrainingResult(
        directory,
        seeds,
        tuple(objectives),
        VALIDATION_EPISODES,
        best,
        compile_s=compile_s,
        train_s=train_s,
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

    setting: Setting
    config: PPOConfig
    seeds: tuple[int, ...]
    directory: Path
    checkpoints: ocp.CheckpointManager
    state: TrainState
    """[seeds, ...]"""
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

    def _keep(self, state: TrainState, reports: list[Report]) -> None:
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

    def _progress(self, updates: int, seconds: float) -> Progress:
        size = self.config.windows
        reward = float(np.mean([row["reward"] for row in self.rows[-len(self.seeds) :]]))
        anchors = self.setting.anchors
        return Progress(
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
    checkpoints: ocp.CheckpointManager, state: TrainState, directory: Path
) -> tuple[TrainState, list[Row]]:
    """The last checkpoint and the metrics up to it; the start where there is none yet."""
    step = checkpoints.latest_step()
    if step is None:
        return state, []
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    return restored(checkpoints, step, like), read_metrics(directory, step)


def _provenance(setting: Setting, config: PPOConfig, seed: int, objective: float) -> dict[str, Any]:
    """How weights were made."""
    provenance: dict[str, Any] = dict(
        command=_command(setting, config, seed),
        seed=seed,
        revision=_revision(),
        jax=jax.__version__,
        windows=config.updates * config.windows,
        validation_episodes=VALIDATION_EPISODES,
        validation_reward=round(objective, 6),
    )
    if setting.anchors is not None:
        provenance["validation_score"] = round(anchors_score(setting.anchors, objective), 4)
    return provenance


def _command(setting: Setting, config: PPOConfig, seed: int) -> str:
    """What makes these weights again, on the task's own hardware and traffic."""
    steps = config.updates * config.windows
    return (
        f"jaxserve train --task {setting.env.name} --steps {steps} --seed {seed} "
        f"--environments {config.environments} --learning-rate {config.learning_rate:g} "
        f"--discount {config.discount:.6g}"
        f"{' --recurrent' if config.recurrent else ''} --out RUN"
    )


def _describe(setting: Setting, config: PPOConfig, seeds: tuple[int, ...]) -> dict[str, Any]:
    return {
        "task": setting.env.name,
        "task_version": setting.spec.version,
        "seeds": list(seeds),
        "config": dataclasses.asdict(config),
    }


def _revision() -> str | None:
    """Git revision of the checkout that this module lies in; None outside one."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
