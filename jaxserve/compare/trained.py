"""The policies of a training run, one for each seed; the run is made, continued or found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from jaxserve.agents.discount import task_discount
from jaxserve.agents.network import NetworkPolicy
from jaxserve.agents.panel import Setting
from jaxserve.agents.ppo import Learner, PPOConfig
from jaxserve.agents.progress import Progress
from jaxserve.agents.run_directory import read_metrics
from jaxserve.agents.training import Progress as TrainingProgress
from jaxserve.agents.training import check_run, restored, train
from jaxserve.agents.weights import load_weights
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError
from jaxserve.tasks import checks

STEPS = 5_000_000
ENVIRONMENTS = 1024
LEARNING_RATE = 2e-3


@dataclass(frozen=True)
class Run:
    """Where a training run is or will be, and how it trains."""

    directory: Path
    config: PPOConfig
    seeds: tuple[int, ...]

    @property
    def exists(self) -> bool:
        """Whether it has begun."""
        return _settings_file(self.directory).is_file()

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return (self.directory / "weights.json").is_file()

    @property
    def windows(self) -> int:
        """Windows that each seed plays."""
        return self.config.updates * self.config.windows


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    run: Run
    policies: tuple[NetworkPolicy, ...]
    """one for each seed."""
    chosen: NetworkPolicy
    """the one of them that did best on validation episodes, which users get."""
    digest: str
    """of its weights."""


@dataclass(frozen=True)
class Curve:
    """How a run learnt."""

    windows: NDArray[np.float64]
    """float64[U], windows played by each seed."""
    reward: NDArray[np.float64]
    """float64[R, U], mean reward of an update's windows, of policies that still explore."""


def plan_run(directory: Path, setting: Setting, seeds: int, steps: int | None) -> Run:
    """The run that is in ``directory``, or else one like that of `jaxserve train` without options.

    Args:
      steps: control windows that each seed plays, ``STEPS`` if None; if given, a run that is found
        must have as many.

    Raises:
      InputError: a number is out of range, or the run there has other numbers.
    """
    config = check_run(
        steps=STEPS if steps is None else steps,
        seed=0,
        seeds=seeds,
        environments=ENVIRONMENTS,
        learning_rate=LEARNING_RATE,
        discount=task_discount(setting.env),
    )
    planned = Run(directory, config, tuple(range(seeds)))
    if not planned.exists:
        return planned
    path = _settings_file(directory)
    data = checks.mapping(read_json(path, str(path)), str(path))
    found = Run(directory, _config(data, str(path)), _seeds(data, str(path)))
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


def trained(setting: Setting, run: Run, progress: Progress | None = None) -> Trained:
    """The run's policies, after the training that is still to do.

    Raises:
      InputError: the run does not fit the task, or what it left cannot be read.
      jaxserve.agents.training.Interrupted: by Ctrl-C, after a checkpoint.
    """
    if not run.finished:
        stage = f"{setting.env.name}, training {len(run.seeds)} policies"

        def watch(report: TrainingProgress) -> None:
            if progress is not None:
                progress(stage, report.windows, report.total)

        if progress is not None:
            progress(stage, 0, run.windows)
        train(setting, run.config, run.seeds, run.directory, resume=run.exists, watch=watch)
    chosen = load_weights(run.directory, setting.env)
    weights = (run.directory / "weights.npz").read_bytes()
    policies = _final_policies(setting, run)
    return Trained(run, policies, chosen, hashlib.sha256(weights).hexdigest()[:16])


def learning_curve(run: Run) -> Curve:
    """The rewards in the run's ``metrics.csv``."""
    rows = read_metrics(run.directory, run.config.updates)
    reward = np.array([row["reward"] for row in rows]).reshape(-1, len(run.seeds)).T
    windows = np.array([row["windows"] for row in rows[:: len(run.seeds)]], float)
    return Curve(windows, reward)


def _final_policies(setting: Setting, run: Run) -> tuple[NetworkPolicy, ...]:
    """From the last checkpoint: a run writes the weights of its best seed only."""
    learner, seeds = Learner.create(setting.env, run.config), np.array(run.seeds)
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
    return tuple(
        learner.policy(jax.tree.map(lambda leaf, i=index: leaf[i], state))
        for index in range(len(run.seeds))
    )


def _settings_file(directory: Path) -> Path:
    return directory / "run.json"


def _config(data: Any, where: str) -> PPOConfig:
    try:
        return PPOConfig(**checks.mapping(data.get("config"), f"{where}: config"))
    except TypeError:
        raise InputError(
            f"{where}: config is not that of this version's learner; train again"
        ) from None


def _seeds(data: Any, where: str) -> tuple[int, ...]:
    seeds = checks.entries(data, "seeds", where)
    if not all(isinstance(seed, int) for seed in seeds):
        raise InputError(f"{where}: seeds is {seeds!r}; it must be a list of whole numbers")
    return tuple(seeds)
