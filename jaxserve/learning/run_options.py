"""Options of a training run: checked, written down, and as the command that asks for it."""

from __future__ import annotations

import dataclasses
import math
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jaxserve import checks
from jaxserve.agents.rule_advice import AdvisingRule
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.agents.trained_on import facts
from jaxserve.datafiles import data_dir
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.returns import task_discount
from jaxserve.tasks.anchors import anchors_score
from jaxserve.tasks.own_deployment import OwnDeployment
from jaxserve.tasks.spec import TaskSpec

Seeds = tuple[int, ...]
"""Seeds of a run, one for each policy that it trains."""

_MAX_NUMBER = 10**12
_SHARING = 4
"""Environments that play the same day of a demand."""
_FEWEST_WINDOWS = 5
"""Windows of the shortest rollout: advantages of a shorter one see little of what follows."""


def config_for(
    env: ServeEnv,
    steps: int,
    seed: int,
    seeds: int,
    environments: int,
    learning_rate: float,
    discount: float | None = None,
    recurrent: bool = False,
) -> PPOConfig:
    """The configuration of a run on a task, see ``check_run``.

    Args:
      env: the task.
      discount: per window; default is that of the task, see ``task_discount``.

    Raises:
      InputError: as ``check_run``.
    """
    return check_run(
        steps,
        seed,
        seeds,
        environments,
        learning_rate,
        task_discount(env) if discount is None else discount,
        recurrent,
        int(env.horizon),
        env.workload.demand is not None,
    )


def check_run(
    steps: int,
    seed: int,
    seeds: int,
    environments: int,
    learning_rate: float,
    discount: float,
    recurrent: bool = False,
    horizon: int = TaskSpec.horizon,
    demand: bool = False,
) -> PPOConfig:
    """The configuration of a run of ``steps`` windows a seed, rounded up to whole updates.

    Advantages look a third as far ahead as the discount does.

    Args:
      steps: windows a seed.
      seed: first seed.
      seeds: policies to train.
      environments: environments of each policy.
      learning_rate: step size of Adam in the first update.
      discount: per window.
      recurrent: whether the network has a recurrent cell.
      horizon: windows of an episode, which rollouts divide.
      demand: whether the traffic is that of days. Days differ by a factor of ten in their rates,
        which moves rewards by far more than knobs do: environments then share a day in groups.

    Raises:
      InputError: a number out of range, or a horizon without a fitting divisor.
    """
    checks.whole("steps", steps, 1, _MAX_NUMBER)
    checks.whole("seeds", seeds, 1, 1024)
    checks.whole("seed", seed, 0, 2**31 - seeds)
    checks.whole("environments", environments, 8, 2**20)
    checks.number("learning_rate", learning_rate, 1e-8, 1)
    checks.number("discount", discount, 0.5, 0.9999)
    config = PPOConfig(
        learning_rate=learning_rate,
        discount=discount,
        gae_lambda=1.0 - min(3.0 * (1.0 - discount), 1.0),
        environments=environments,
        recurrent=recurrent,
        rollout_windows=_rollout_windows(horizon),
        traffic_group=math.gcd(_SHARING, environments) if demand else 1,
    )
    return dataclasses.replace(config, updates=-(-steps // config.windows))


def _rollout_windows(horizon: int) -> int:
    """Windows of a rollout: the largest divisor of the horizon up to that of ``PPOConfig``."""
    most = PPOConfig.rollout_windows
    fitting = [windows for windows in range(_FEWEST_WINDOWS, most + 1) if horizon % windows == 0]
    if not fitting:
        allowed = f"a number with a divisor from {_FEWEST_WINDOWS} to {most}, for training by PPO"
        checks.refuse("the task's horizon", horizon, allowed)
    return fitting[-1]


def check_place(directory: Path) -> None:
    """Packaged weights say which revision made them, so that tree must be that revision's.

    Raises:
      InputError: the directory is among the packaged data, and a tracked file of the checkout has
        changes that are not committed.
    """
    packaged = directory.resolve().is_relative_to(data_dir())
    if packaged and (_revision() or "").endswith("-dirty"):
        raise InputError(
            f"--out {directory} is among the packaged data, and the checkout has changes that are "
            "not committed, so that weights could not say what made them; commit them first, or "
            "name another --out"
        )


def describe(setup: TaskSetup, config: PPOConfig, seeds: Seeds) -> dict[str, Any]:
    """Description of a run, ready for JSON: everything that its results depend on but the code."""
    rule = AdvisingRule.of_anchors(setup.anchors)
    advised = {} if rule is None else {"rule": rule.data}
    return {**setup.inputs, "seeds": list(seeds), "config": dataclasses.asdict(config), **advised}


def described(description: Mapping[str, Any], where: str) -> tuple[PPOConfig, Seeds]:
    """Configuration and seeds of a description.

    Args:
      where: it was read.

    Raises:
      InputError: it is not what ``describe`` returns.
    """
    about = checks.JsonObject(description, where)
    config = about.inside("config")
    fields = {field.name: field.default for field in dataclasses.fields(PPOConfig)}
    if config.keys() != fields.keys():
        raise InputError(f"{where}: config is not that of this version's learner; train again")
    for name, default in fields.items():
        if isinstance(default, bool):
            config.flag(name)
        elif isinstance(default, int):
            config.whole(name, 1, _MAX_NUMBER)
        else:
            config.number(name, 0, _MAX_NUMBER)
    seeds = [checks.whole(about.name("seeds"), seed, 0) for seed in about.entries("seeds")]
    return PPOConfig(**config), tuple(seeds)


def provenance(
    setup: TaskSetup, config: PPOConfig, seeds: Seeds, best: int, objective: float, episodes: int
) -> dict[str, Any]:
    """Provenance of weights: command, revision and configuration.

    Args:
      best: index of the seed that they are of.
      objective: mean reward that they reach on validation episodes.
      episodes: that this is the mean of.
    """
    made: dict[str, Any] = dict(
        command=command(setup, config, seeds),
        seed=seeds[best],
        inputs=dict(setup.inputs),
        trained_on=facts(setup),
        revision=_revision(),
        jax=jax.__version__,
        windows=config.updates * config.windows,
        validation_episodes=episodes,
        validation_reward=round(objective, 6),
    )
    if setup.anchors is not None:
        made["validation_score"] = round(anchors_score(setup.anchors, objective), 4)
    return made


def command(setup: TaskSetup, config: PPOConfig, seeds: Seeds) -> str | None:
    """The command that makes this run again; None where only Python can ask for it."""
    steps, count = config.updates * config.windows, len(seeds)
    numbers: dict[str, Any] = {
        "seed": seeds[0],
        "seeds": count,
        "environments": config.environments,
        "learning_rate": config.learning_rate,
        "discount": config.discount,
    }
    try:
        asked = config_for(setup.env, steps, **numbers, recurrent=config.recurrent)
    except InputError:
        return None
    in_a_row = seeds == tuple(range(seeds[0], seeds[0] + count))
    if asked != config or not in_a_row or not setup.changes.keys() <= _OPTIONS.keys():
        return None
    task = setup.spec.file or setup.spec.name
    own = {_OPTIONS[name]: value for name, value in setup.changes.items()}
    if isinstance(own.get("knobs"), tuple):
        own["knobs"] = ",".join(own["knobs"])
    options = {"task": task, "steps": steps, **numbers, **own}
    words = ["jaxserve", "train"]
    for name, value in options.items():
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{name.replace('_', '-')}", str(each)]
    words += ["--recurrent"] * config.recurrent
    return shlex.join([*words, "--out", "RUN"])


_RENAMED = {"ttft_s": "ttft", "tpot_s": "tpot", "slos": "slo"}
_OPTIONS = {
    field.name: _RENAMED.get(field.name, field.name) for field in dataclasses.fields(OwnDeployment)
}
"""Changes to a task that the command line can ask for, and the names of its options."""


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
