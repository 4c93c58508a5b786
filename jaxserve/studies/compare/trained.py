"""Policies of a training run, one for each seed; the run is started, resumed or found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from jaxserve.agents.network import NetworkPolicy
from jaxserve.agents.progress import Progress
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.agents.weights import load_weights
from jaxserve.errors import InputError
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.run_directory import (
    check_description,
    has_run,
    read_description,
    read_metrics,
)
from jaxserve.learning.run_options import Seeds, config_for, described
from jaxserve.learning.training import TrainingStatus, learner_for, restored, split_seeds, train

STEPS = 5_000_000
ENVIRONMENTS = 1024
LEARNING_RATE = 2e-3


@dataclass(frozen=True)
class TrainingRun:
    """Directory and options of a training run, which may not exist yet."""

    directory: Path
    """directory of the run."""
    config: PPOConfig
    """options of PPO."""
    seeds: Seeds
    """seed of each policy."""

    @property
    def exists(self) -> bool:
        """Whether the run has begun."""
        return has_run(self.directory)

    @property
    def finished(self) -> bool:
        """Whether the run has written its weights."""
        return (self.directory / "weights.json").is_file()

    @property
    def windows(self) -> int:
        """Control windows of each seed."""
        return self.config.updates * self.config.windows


@dataclass(frozen=True)
class Trained:
    """Policies of a finished run."""

    run: TrainingRun
    """run of the policies."""
    policies: tuple[NetworkPolicy, ...]
    """policy of each seed."""
    chosen: NetworkPolicy
    """best policy on validation episodes, whose weights users get."""
    digest: str
    """digest of the weights."""


@dataclass(frozen=True)
class Curve:
    """Learning curve of a run."""

    windows: NDArray[np.float64]
    """float64[U], control windows of each seed so far."""
    reward: NDArray[np.float64]
    """float64[R, U], mean reward of an update's windows, of exploring policies."""


def plan_run(directory: Path, setup: TaskSetup, seeds: int, steps: int | None) -> TrainingRun:
    """The run in ``directory``, or else a new run with the defaults of ``jaxserve train``.

    Args:
      directory: directory of the run.
      setup: task and environment.
      seeds: number of policies.
      steps: control windows of each seed, ``STEPS`` if None; if given, an existing run must have
        the same.

    Raises:
      InputError: a number is out of range, or the existing run has another task or other numbers.
    """
    steps_each = STEPS if steps is None else steps
    config = config_for(setup.env, steps_each, 0, seeds, ENVIRONMENTS, LEARNING_RATE)
    planned = TrainingRun(directory, config, tuple(range(seeds)))
    if not planned.exists:
        return planned
    description = read_description(directory, "it is gone")
    check_description(directory, description, setup.inputs)
    found = TrainingRun(directory, *described(description, f"the run in {directory}"))
    if len(found.seeds) != seeds:
        raise InputError(
            f"seeds is {seeds}, but the run in {directory} has {len(found.seeds)}; ask for as many "
            "or name another --out"
        )
    if steps is not None and found.windows != planned.windows:
        raise InputError(
            f"steps make {planned.windows} windows a seed, but the run in {directory} has "
            f"{found.windows}; leave --steps out or name another --out"
        )
    return found


def trained(setup: TaskSetup, run: TrainingRun, progress: Progress | None = None) -> Trained:
    """Trains the rest of the run, if any, and loads its policies.

    Raises:
      InputError: the run does not fit the task, or its files cannot be read.
      jaxserve.learning.training.Interrupted: by Ctrl-C, after a checkpoint.
    """
    if not run.finished:
        stage = f"{setup.spec.name}, training {len(run.seeds)} policies"

        def watch(report: TrainingStatus) -> None:
            if progress is not None:
                progress(stage, report.windows, report.total)

        if progress is not None:
            progress(stage, 0, run.windows)
        train(setup, run.config, run.seeds, run.directory, resume=run.exists, watch=watch)
    chosen = load_weights(run.directory, setup.env, setup.spec.name)
    weights = (run.directory / "weights.npz").read_bytes()
    policies = _final_policies(setup, run)
    return Trained(run, policies, chosen, hashlib.sha256(weights).hexdigest()[:16])


def learning_curve(run: TrainingRun) -> Curve:
    """Learning curve from the run's ``metrics.csv``."""
    rows = read_metrics(run.directory, run.config.updates, run.seeds)
    reward = np.array([row["reward"] for row in rows]).reshape(-1, len(run.seeds)).T
    windows = np.array([row["windows"] for row in rows[:: len(run.seeds)]], float)
    return Curve(windows, reward)


def _final_policies(setup: TaskSetup, run: TrainingRun) -> tuple[NetworkPolicy, ...]:
    """Policies of all seeds from the last checkpoint; ``weights.npz`` has only the best one."""
    learner, seeds = learner_for(setup, run.config), np.array(run.seeds)
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    like = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here),
        jax.eval_shape(jax.vmap(lambda seed: learner.init(jax.random.key(seed))), seeds),
    )
    directory = (run.directory / "checkpoints").absolute()
    options = ocp.CheckpointManagerOptions(create=False)
    with ocp.CheckpointManager(directory, options=options) as checkpoints:
        step = checkpoints.latest_step()
        if step != run.config.updates:
            raise InputError(
                f"{directory} has no checkpoint of update {run.config.updates}, where the run "
                "ended; train it again in another --out"
            )
        state = restored(checkpoints, step, like)
    return split_seeds(learner.policy(state), run.seeds)
