"""The agents that can be evaluated by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxserve.agents.baselines import (
    RandomPolicy,
    StaticPolicy,
    default_policy,
    exploit_policies,
)
from jaxserve.agents.grids import action_at
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.policy import Policy
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.registry import make
from jaxserve.seeds import episode_keys
from jaxserve.spaces import make_action
from jaxserve.tasks.anchors import Anchors, load_anchors
from jaxserve.tasks.spec import load_task

SearchProgress = Callable[[str, int, int], None]
"""Called with a stage name, steps done and steps in all."""

_QUICK_EPISODES = 8
_QUICK_CANDIDATES = 128
_QUICK_ROUNDS = 3


@dataclass(frozen=True)
class Setting:
    """A task on a deployment, as agents are compared on it."""

    env: ServeEnv
    anchors: Anchors | None
    """None where scores mean nothing: other hardware or traffic than the task's own."""
    note: str | None
    """why there are no anchors, in one sentence."""


def load_setting(
    task: str | int,
    hardware: str | None = None,
    table: str | None = None,
    trace: str | None = None,
) -> Setting:
    """A task with its anchors; see ``jaxserve.make`` for the arguments.

    Raises:
      InputError: anything unknown, unreadable or out of range.
    """
    env = make(task, hardware=hardware, table=table, trace=trace)
    changed = {"hardware": hardware, "table": table, "trace": trace}
    given = [name for name, value in changed.items() if value is not None]
    if given:
        return Setting(env, None, f"no scores: the anchors are for the task's own {given[0]}")
    try:
        return Setting(env, load_anchors(load_task(task)), None)
    except InputError as error:
        return Setting(env, None, f"no scores: {error}")


def build_agent(name: str, setting: Setting, progress: SearchProgress | None = None) -> Policy:
    """The agent ``name``, ready for ``setting``.

    Args:
      progress: told about the search for the best static setting, where there is none yet.

    Raises:
      InputError: no such agent.
    """
    known = agent_names()
    if name not in known:
        raise InputError(f"agent {name!r} is unknown; the agents are {', '.join(known)}")
    if name in _AGENTS:
        return _AGENTS[name](setting, progress)
    return exploit_policies()[name]


def agent_names() -> tuple[str, ...]:
    """Every agent, those that ``all`` stands for first."""
    return (*_AGENTS, *exploit_policies())


def parse_agents(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list; ``all`` stands for every agent worth comparing.

    Raises:
      InputError: an unknown name, or none at all.
    """
    names: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        names += _AGENTS if name == "all" else [name]
    known = agent_names()
    for name in names:
        if name not in known:
            raise InputError(
                f"agent {name!r} is unknown; it must be all or some of {', '.join(known)}"
            )
    return tuple(dict.fromkeys(names))


def best_static_policy(setting: Setting, progress: SearchProgress | None = None) -> StaticPolicy:
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
    return StaticPolicy(action_at(indices), "best_static")


_AGENTS: dict[str, Callable[[Setting, SearchProgress | None], Policy]] = {
    "random": lambda setting, progress: RandomPolicy(),
    "default": lambda setting, progress: default_policy(setting.env),
    "best_static": best_static_policy,
    "heuristic": lambda setting, progress: HeuristicPolicy(),
}
"""Those that ``all`` stands for, in the order of the table."""
