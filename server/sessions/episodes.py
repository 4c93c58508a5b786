"""Episodes: the task, seed, split and config that, with the actions, determine every window."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.env import ServeEnv
from jaxserve.registry import make
from jaxserve.seeds import SPLITS, episode_key
from jaxserve.tasks.reward import REWARD_CONFIG, reweight
from jaxserve.tasks.spec import TaskSpec, load_task, task_names

CACHED_ENVIRONMENTS = 64
"""Environments, one for each task and config, that are cached."""
SEEDS_LISTED = 32
"""Seeds of each task that a split lists; reset takes any other seed by number."""
MAX_SERVED_HORIZON = 2000
"""Windows of an episode at most, so that a session is rebuilt within a second."""


@dataclass(frozen=True)
class Episode:
    """An episode; build it with ``parse_episode``, which checks every field."""

    task: str
    task_version: int
    seed: int
    split: str
    config: str
    """JSON of reward weights and task overrides; ``{}`` for the task as it is."""

    def to_json(self) -> str:
        """One line; ``from_json`` reads it."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Episode:
        """The episode that ``to_json`` wrote."""
        return cls(**json.loads(text))

    @property
    def weights(self) -> dict[str, Any]:
        """Changed reward weights."""
        return split_config(json.loads(self.config))[0]

    @property
    def overrides(self) -> dict[str, Any]:
        """Overridden parts of the task."""
        return split_config(json.loads(self.config))[1]

    def key(self) -> jax.Array:
        """The episode's only source of randomness."""
        return episode_key(self.seed, self.split)


def parse_episode(
    task: str | int, seed: int, split: str, config: Mapping[str, Any] | None
) -> Episode:
    """An episode from a client's request.

    Args:
      task: name or alias of a built-in task; files are not read for clients.
      config: reward weights (``jaxserve.tasks.reward.REWARD_CONFIG``) and overrides of the task
        (``jaxserve.tasks.overrides``) side by side.

    Raises:
      InputError: a value is unknown or out of range, or would need programs of its own.
    """
    spec = built_in_task(task)
    episode_key(seed, split)
    weights, overrides = split_config(JsonObject({} if config is None else config, "config"))
    if "output_ages" in overrides:
        # Every number changes the shape of the state, whose programs are kept for ever.
        checks.refuse("config: output_ages", overrides["output_ages"], "left out on a server")
    for name, value in (weights | overrides).items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            checks.refuse(f"config: {name}", value, "plain JSON, without NaN and Infinity")
    text = json.dumps(weights | overrides, sort_keys=True)
    horizon = int(environment(spec.name, text).horizon)
    checks.whole("config: horizon", horizon, 1, MAX_SERVED_HORIZON)
    return Episode(spec.name, spec.version, seed, split, text)


def built_in_task(task: str | int) -> TaskSpec:
    """The specification of a built-in task.

    Raises:
      InputError: no such task.
    """
    spec = _by_name().get(str(task))
    if spec is None or isinstance(task, bool):
        allowed = f"one of {', '.join(task_names())} or the number of one"
        checks.refuse("task_id", task, allowed)
    return spec


def task_number(name: str) -> int:
    """The number that names a task: its alias, else its place in the list."""
    return built_in_task(name).alias or task_names().index(name) + 1


def listed_episode(split: str, index: int) -> tuple[str, int]:
    """Task and seed of entry ``index`` of a split's list.

    Raises:
      InputError: unknown split, or no such entry.
    """
    check_split(split)
    checks.whole("index", index, 0, listed_count() - 1)
    names = task_names()
    return names[index % len(names)], index // len(names)


def check_split(split: str) -> None:
    """Raises InputError if the split is unknown."""
    checks.one_of("split", split, SPLITS)


def listed_count() -> int:
    """Number of entries of a split's list; all splits have the same."""
    return len(task_names()) * SEEDS_LISTED


def split_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reward weights and overrides of a config."""
    weights = {name: value for name, value in config.items() if name in REWARD_CONFIG}
    return weights, {name: value for name, value in config.items() if name not in REWARD_CONFIG}


@functools.cache
def _by_name() -> dict[str, TaskSpec]:
    specs = [load_task(name) for name in task_names()]
    numbered = {str(spec.alias or place): spec for place, spec in enumerate(specs, 1)}
    return {spec.name: spec for spec in specs} | numbered


@functools.lru_cache(maxsize=CACHED_ENVIRONMENTS)
def environment(task: str, config: str) -> ServeEnv:
    """The environment of an Episode's ``task`` and ``config``."""
    weights, overrides = split_config(json.loads(config))
    env = make(built_in_task(task), overrides=overrides)
    return dataclasses.replace(env, reward=reweight(env.reward, weights))
