"""The agents that can be evaluated by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp

from jaxserve.agents.baselines import (
    RandomPolicy,
    StaticPolicy,
    default_policy,
    exploit_policies,
)
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress
from jaxserve.datafiles import data_dir
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.grids import action_at
from jaxserve.registry import make
from jaxserve.seeds import episode_keys
from jaxserve.spaces import make_action
from jaxserve.tasks.anchors import Anchors, load_anchors
from jaxserve.tasks.spec import TaskSpec, load_task

_QUICK_EPISODES = 8
_QUICK_CANDIDATES = 128
_QUICK_ROUNDS = 3


@dataclass(frozen=True)
class Setting:
    """A task on a deployment, as agents are compared on it."""

    env: ServeEnv
    spec: TaskSpec
    anchors: Anchors | None
    """None where scores mean nothing: other hardware or traffic than the task's own."""
    note: str | None
    """why there are no anchors, in one sentence."""
    weights: Path
    """directory of the weights that the agent ppo has here."""


def load_setting(
    task: str | int,
    hardware: str | None = None,
    table: str | None = None,
    trace: str | None = None,
    weights: Path | None = None,
) -> Setting:
    """A task with its anchors; see ``jaxserve.make`` for the arguments.

    Args:
      weights: directory with those of the agent ppo; default is the task's packaged ones, or
        NAME.weights beside a task file.

    Raises:
      InputError: anything unknown, unreadable or out of range.
    """
    spec = load_task(task)
    env = make(spec, hardware=hardware, table=table, trace=trace)
    if weights is None:
        own = spec.file
        weights = packaged_weights(spec.name) if own is None else own.with_suffix(".weights")
    changed = {"hardware": hardware, "table": table, "trace": trace}
    given = [name for name, value in changed.items() if value is not None]
    if given:
        note = f"no scores, because the anchors are for the task's own {given[0]}"
        return Setting(env, spec, None, note, weights)
    try:
        return Setting(env, spec, load_anchors(spec), None, weights)
    except InputError as error:
        return Setting(env, spec, None, f"no scores: {error}", weights)


def packaged_weights(task: str) -> Path:
    """Directory of the weights shipped for a task; it exists where there are any."""
    return data_dir() / "weights" / task


def build_agent(name: str, setting: Setting, progress: Progress | None = None) -> Policy:
    """The agent ``name``, ready for ``setting``.

    Args:
      progress: told about the search for the best static setting where there is none yet.

    Raises:
      InputError: no such agent.
    """
    _check_known(name)
    known = _AGENTS | _PRIVILEGED
    return known[name](setting, progress) if name in known else exploit_policies()[name]


def agent_names() -> tuple[str, ...]:
    """Every agent, those that ``all`` stands for first."""
    return (*_AGENTS, *_PRIVILEGED, *exploit_policies())


def parse_agents(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list; ``all`` stands for every agent worth comparing.

    Raises:
      InputError: an unknown name, or none at all.
    """
    names: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        names += _AGENTS if name == "all" else [name]
    for name in names:
        _check_known(name)
    return tuple(dict.fromkeys(names))


def playable(names: Sequence[str], setting: Setting) -> tuple[str, ...]:
    """Those of ``names`` that need no weights, or have them."""
    trained = (setting.weights / "weights.json").is_file()
    return tuple(name for name in names if trained or name != "ppo")


def best_static_policy(setting: Setting, progress: Progress | None = None) -> StaticPolicy:
    """The frozen best static setting of the task, or that of a quick search on training seeds."""
    if setting.anchors is not None:
        return StaticPolicy(make_action(**setting.anchors.best_static_action), "best_static")
    from jaxserve.agents.search import best_static

    indices = best_static(
        setting.env,
        episode_keys(_QUICK_EPISODES, "train"),
        candidates=_QUICK_CANDIDATES,
        rounds=_QUICK_ROUNDS,
        progress=progress,
    )
    return StaticPolicy(action_at(jnp.asarray(indices)), "best_static")


def _trained_policy(setting: Setting, progress: Progress | None) -> Policy:
    from jaxserve.agents.weights import load_weights

    return load_weights(setting.weights, setting.env)


def _planner(setting: Setting, progress: Progress | None) -> Policy:
    from jaxserve.agents.planner import planner_for

    return planner_for(setting.env)


def _regime_oracle(setting: Setting, progress: Progress | None) -> Policy:
    from jaxserve.agents.regime_oracle import search_regime_oracle

    static = best_static_policy(setting, progress).action
    return search_regime_oracle(setting.env, static, progress=progress)


def _check_known(name: str) -> None:
    known = agent_names()
    if name not in known:
        raise InputError(f"agent {name!r} is unknown; allowed are all, {', '.join(known)}")


_AGENTS: dict[str, Callable[[Setting, Progress | None], Policy]] = {
    "random": lambda setting, progress: RandomPolicy(),
    "default": lambda setting, progress: default_policy(setting.env),
    "best_static": best_static_policy,
    "heuristic": lambda setting, progress: HeuristicPolicy(),
    "ppo": _trained_policy,
}
"""Those that ``all`` stands for, in the order of the table."""

_PRIVILEGED: dict[str, Callable[[Setting, Progress | None], Policy]] = {
    "planner": _planner,
    "regime_oracle": _regime_oracle,
}
"""Yardsticks that are shown the simulator's state; each takes a minute or two."""

PRIVILEGED_AGENTS = tuple(_PRIVILEGED)
"""Names of the agents that know what no operator sees."""
