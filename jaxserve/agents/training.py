"""Training runs: chunks of compiled updates with a bar, metrics and checkpoints between them.

A run is a directory: ``checkpoints/``, ``metrics.csv`` with a row for every update and seed,
``run.json`` with the settings, and at the end the weights of the seed that did best on validation
episodes. Because an update draws from its own number, a resumed run is the run that was never
interrupted, bit by bit.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from jaxserve.agents.evaluation import evaluate
from jaxserve.agents.panel import Setting
from jaxserve.agents.ppo import Learner, PPOConfig, Report, TrainState
from jaxserve.agents.weights import save_weights
from jaxserve.datafiles import write_atomic
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
    recurrent: bool = False,
) -> PPOConfig:
    """The configuration of a run of ``steps`` windows a seed, rounded up to whole updates.

    Raises:
      InputError: a number out of range.
    """
    for name, value, low, high in (
        ("steps", steps, 1, 10**12),
        ("seed", seed, 0, 2**31 - 1),
        ("seeds", seeds, 1, 1024),
        ("environments", environments, 8, 2**20),
        ("learning_rate", learning_rate, 1e-8, 1.0),
    ):
        if not low <= value <= high:
            raise InputError(f"{name} is {value}; it must be from {low:g} to {high:g}")
    config = PPOConfig(learning_rate=learning_rate, environments=environments, recurrent=recurrent)
    updates = -(-steps // (environments * config.rollout_windows))
    return dataclasses.replace(config, updates=updates)


def train(
    setting: Setting,
    config: PPOConfig,
    seeds: tuple[int, ...],
    directory: Path,
    *,
    resume: bool = False,
    watch: Watcher | None = None,
) -> TrainingResult:
    """Trains one policy per seed, all in one program.

    Args:
      directory: of the run; must be new or empty, unless ``resume``.
      watch: told about the progress every few seconds.

    Raises:
      InputError: sizes that do not fit, a directory in use, nothing to resume or other settings
        than the run that is resumed; or a loss that is no number, after which the last checkpoint
        stands.
      Interrupted: by Ctrl-C, after a checkpoint.
    """
    learner = Learner.create(setting.env, config)
    settings = _describe(setting, config, seeds)
    _claim(directory, settings, resume)
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds))
    state = jax.jit(jax.vmap(learner.init))(keys)
    rows: list[dict[str, float]] = []
    with ocp.CheckpointManager(
        (directory / "checkpoints").absolute(), options=ocp.CheckpointManagerOptions(max_to_keep=2)
    ) as checkpoints:
        if resume:
            state, rows = _restore(checkpoints, state, directory)
        run = _Run(setting, config, seeds, directory, checkpoints, state, rows)
        started = time.perf_counter()
        update = jax.jit(jax.vmap(learner.update)).lower(state).compile()
        compile_s = time.perf_counter() - started
        try:
            train_s = run.to_the_end(update, watch)
        except KeyboardInterrupt:
            run.save()
            raise Interrupted(
                f"stopped after update {run.done} of {config.updates}; continue with --resume"
            ) from None
    objectives = []
    for index in range(len(seeds)):
        policy = learner.policy(jax.tree.map(lambda leaf, i=index: leaf[i], run.state))
        found = evaluate(setting, policy, VALIDATION_EPISODES, "validation")
        objectives.append(float(found.statistics.objective.mean()))
    best = int(np.argmax(objectives))
    policy = learner.policy(jax.tree.map(lambda leaf: leaf[best], run.state))
    provenance: dict[str, Any] = dict(
        command=_command(setting, config, seeds[best]),
        seed=seeds[best],
        revision=_revision(),
        jax=jax.__version__,
        windows=config.updates * config.environments * config.rollout_windows,
        validation_episodes=VALIDATION_EPISODES,
        validation_reward=round(objectives[best], 6),
    )
    if setting.anchors is not None:
        score = anchors_score(setting.anchors, objectives[best])
        provenance["validation_score"] = round(score, 4)
    save_weights(directory, policy, setting.spec, provenance)
    return TrainingResult(
        directory, seeds, tuple(objectives), best, compile_s=compile_s, train_s=train_s
    )


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
    rows: list[dict[str, float]]

    @property
    def done(self) -> int:
        """Updates finished."""
        return int(self.state.update[0])

    def to_the_end(self, update: Callable[..., Any], watch: Watcher | None) -> float:
        """Updates, looks, saves; returns the seconds that it took."""
        begun = self.done
        started = looked = saved = time.perf_counter()
        waiting: list[Report] = []
        # One update is measured, then as many as fill the time between two looks are dispatched.
        at_once = 1
        while self.done < self.config.updates:
            count = min(at_once, self.config.updates - self.done)
            state = self.state
            for _ in range(count):
                state, report = update(state)
                waiting.append(report)
            jax.block_until_ready(state)
            reports, waiting = waiting, []
            now = time.perf_counter()
            at_once = max(1, round(count * _CHUNK_S / max(now - looked, 1e-3)))
            looked = now
            self._keep(state, reports)
            if watch:
                watch(self._progress(self.done - begun, now - started))
            if now - saved > _CHECKPOINT_S:
                self.save()
                saved = now
        if self.done > begun:
            self.save()
        return time.perf_counter() - started

    def save(self) -> None:
        """Writes a checkpoint and the metrics up to it."""
        if self.done and self.checkpoints.latest_step() != self.done:
            self.checkpoints.save(self.done, args=ocp.args.StandardSave(self.state))  # type: ignore
            self.checkpoints.wait_until_finished()
        write_atomic(self.directory / "metrics.csv", _table(self.rows))

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
                windows = number * self.config.environments * self.config.rollout_windows
                rows.append({"update": number, "windows": windows, "seed": seed} | row)
        self.state = state
        self.rows += rows

    def _progress(self, updates: int, seconds: float) -> Progress:
        size = self.config.environments * self.config.rollout_windows
        reward = float(np.mean([row["reward"] for row in self.rows[-len(self.seeds) :]]))
        anchors = self.setting.anchors
        return Progress(
            windows=self.done * size,
            total=self.config.updates * size,
            windows_per_s=updates * size * len(self.seeds) / seconds,
            reward=reward,
            score=None if anchors is None else anchors_score(anchors, reward),
        )


def _claim(directory: Path, settings: Mapping[str, Any], resume: bool) -> None:
    """Makes sure that the directory is this run's."""
    path = directory / "run.json"
    if resume:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(
                f"--out {directory} has no run.json: there is no run to resume"
            ) from None
        except (OSError, ValueError) as error:
            raise InputError(f"{path} is not readable JSON: {error}") from None
        for name in settings:
            if found.get(name) != settings[name]:
                raise InputError(
                    f"{name} is {settings[name]!r}, but the run in {directory} has "
                    f"{found.get(name)!r}; resume with the same settings"
                )
        return
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InputError(f"--out {directory} is in use; name a new directory, or add --resume")
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(path, (json.dumps(settings, indent=2) + "\n").encode())


def _restore(
    checkpoints: ocp.CheckpointManager, state: TrainState, directory: Path
) -> tuple[TrainState, list[dict[str, float]]]:
    """The last checkpoint and the metrics up to it; the start where there is none yet."""
    step = checkpoints.latest_step()
    if step is None:
        return state, []
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    state = checkpoints.restore(step, args=ocp.args.StandardRestore(like))  # type: ignore
    with open(directory / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    for row in rows:
        row |= {name: int(row[name]) for name in ("update", "windows", "seed")}
    return state, [row for row in rows if row["update"] <= step]


def _command(setting: Setting, config: PPOConfig, seed: int) -> str:
    """What makes these weights again, on the task's own hardware and traffic."""
    steps = config.updates * config.environments * config.rollout_windows
    return (
        f"jaxserve train --task {setting.env.name} --steps {steps} --seed {seed} "
        f"--environments {config.environments} --learning-rate {config.learning_rate:g}"
        f"{' --recurrent' if config.recurrent else ''} --out RUN"
    )


def _describe(setting: Setting, config: PPOConfig, seeds: tuple[int, ...]) -> dict[str, Any]:
    return {
        "task": setting.env.name,
        "task_version": setting.spec.version,
        "seeds": list(seeds),
        "config": dataclasses.asdict(config),
    }


def _table(rows: list[dict[str, float]]) -> bytes:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue().encode()


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
