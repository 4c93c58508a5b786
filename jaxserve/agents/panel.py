"""The agents that can be evaluated by name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import jax.numpy as jnp

from jaxserve import checks
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import (
    RandomPolicy,
    StaticPolicy,
    default_policy,
    exploit_policies,
)
from jaxserve.agents.played_settings import PlayedSettings, search_digest
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress
from jaxserve.agents.search import StaticSearch, search_static
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.grids import action_at, grid_sizes
from jaxserve.runtime.jax_setup import cache_folder
from jaxserve.spaces import make_action


def build_agent(name: str, setup: TaskSetup, progress: Progress | None = None) -> Policy:
    """The agent ``name``, ready for ``setup``.

    An InputWarning says it if the weights of ppo were trained on something else than ``setup``.

    Args:
      progress: told about the search for the best static setting where there is none yet.

    Raises:
      InputError: no such agent.
    """
    _check_known(name)
    known = _AGENTS | _PRIVILEGED
    return known[name](setup, progress) if name in known else exploit_policies()[name]


@functools.cache
def agent_names() -> tuple[str, ...]:
    """Every agent, those that ``all`` stands for first."""
    return (*_AGENTS, *_PRIVILEGED, *exploit_policies())


def parse_agents(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list; ``all`` stands for every agent worth comparing.

    Raises:
      InputError: an unknown name, or none at all.
    """
    names: list[str] = []
    for part in text.split(","):
        name = checks.known_name(part.strip(), ("all", *agent_names()))
        names += _AGENTS if name == "all" else [name]
    for name in names:
        _check_known(name)
    return tuple(dict.fromkeys(names))


def playable(names: Sequence[str], setup: TaskSetup) -> tuple[str, ...]:
    """Agents among ``names`` that the task has: ppo with weights, best_rule with a fleet."""
    missing = {
        "ppo": not (setup.weights / "weights.json").is_file(),
        "best_rule": setup.env.deployment.fleet is None,
    }
    return tuple(name for name in names if not missing.get(name, False))


def best_static_policy(setup: TaskSetup, progress: Progress | None = None) -> StaticPolicy:
    """The frozen best static setting of the task, or that of ``find_best_static``."""
    if setup.anchors is not None:
        return StaticPolicy(make_action(**setup.anchors.best_static_action))
    return static_policy(find_best_static(setup, progress))


def static_policy(found: StaticSearch) -> StaticPolicy:
    """The policy that plays the setting of a search."""
    return StaticPolicy(action_at(jnp.asarray(found.setting)))


def find_best_static(setup: TaskSetup, progress: Progress | None = None) -> StaticSearch:
    """Searches the best constant setting on all training episodes of a recording, or on up to
    ``MAX_SEARCH_EPISODES`` where traffic is drawn.

    Rewards are kept on disk: a second call is at once, and a search that was cut off goes on.

    Raises:
      InputError: a recording is too short, see ``TaskSetup.training_env``; or no knob has a second
        value.
    """
    if grid_sizes(setup.env).max() == 1:
        knobs = ", ".join(setup.spec.knobs)
        raise InputError(f"there is nothing to search: {knobs} can take one value only here")
    env, keys = setup.search_episodes()
    folder = cache_folder()
    path = None if folder is None else folder / "searches" / f"{search_digest(env, keys)}.npz"
    return search_static(
        env,
        keys,
        doubt=setup.doubt,
        played=PlayedSettings(path),
        progress=progress,
    )


def _trained_policy(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.trained_on import warn_trained_elsewhere
    from jaxserve.agents.weights import load_weights

    policy = setup.named_policy or load_weights(setup.weights, setup.env, setup.spec.name)
    warn_trained_elsewhere(setup.weights, setup)
    return policy


def _best_rule(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.scaling import ScalingPolicy
    from jaxserve.agents.scaling_search import RULE_EPISODES, tune_rules

    if setup.env.deployment.fleet is None:
        raise InputError(
            f"best_rule scales replicas, but those of {setup.spec.name} serve all the time; name a "
            "task with a fleet, such as fleet_chat"
        )
    if setup.anchors is not None and setup.anchors.best_rule_setting is not None:
        return ScalingPolicy.from_setting(setup.anchors.best_rule_setting)
    env, keys = setup.search_episodes(RULE_EPISODES)
    knobs = best_static_policy(setup, progress).action
    return tune_rules(env, keys, knobs, progress=progress).policy


def _planner(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.planner import planner_for

    return planner_for(setup.env)


def _regime_oracle(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.regime_oracle import search_regime_oracle

    static = best_static_policy(setup, progress).action
    return search_regime_oracle(setup.training_env, static, progress=progress)


def _check_known(name: str) -> None:
    if name not in agent_names():
        checks.refuse_name("agent", name, ("all", *agent_names()))


_AGENTS: dict[str, Callable[[TaskSetup, Progress | None], Policy]] = {
    "random": lambda setup, progress: RandomPolicy(),
    "default": lambda setup, progress: default_policy(setup.env),
    "best_static": best_static_policy,
    "heuristic": lambda setup, progress: HeuristicPolicy(),
    "best_rule": _best_rule,
    "ppo": _trained_policy,
}
"""Agents that ``all`` stands for, in the order of the table."""

_PRIVILEGED: dict[str, Callable[[TaskSetup, Progress | None], Policy]] = {
    "planner": _planner,
    "regime_oracle": _regime_oracle,
}
"""Yardsticks that are shown the simulator's state; each takes a minute or two."""

PRIVILEGED_AGENTS = tuple(_PRIVILEGED)
"""Names of the agents that know what no operator sees."""
