"""The agents that can be evaluated by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from jaxserve import checks
from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import (
    RandomPolicy,
    StaticPolicy,
    default_policy,
    exploit_policies,
)
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
from jaxserve.tasks.inputs import task_inputs
from jaxserve.tasks.spec import TaskSpec, load_task

_QUICK_EPISODES = 4
_QUICK_CANDIDATES = 128
_QUICK_ROUNDS = 3
_QUICK_KEEP = 4
"""With twice as many episodes and settings kept, the search finds settings of the same
reward within 0.001 on four built-in tasks."""


@dataclass(frozen=True)
class TaskSetup:
    """A task on a deployment, as agents are trained, evaluated and compared on it."""

    env: ServeEnv
    spec: TaskSpec
    inputs: Mapping[str, Any]
    """all that ``env`` was built from, see ``jaxserve.tasks.inputs``."""
    changes: Mapping[str, Any]
    """arguments of ``jaxserve.make`` that replace something of the task's own, as they were given;
    empty for the task itself."""
    anchors: Anchors | None
    """None where scores mean nothing: other hardware or traffic than the task's own."""
    note: str | None
    """why there are no anchors, in one sentence."""
    weights: Path
    """directory of the weights that the agent ppo has here."""


def load_setup(
    task: str | int,
    hardware: str | None = None,
    table: str | None = None,
    trace: str | None = None,
    weights: Path | None = None,
    model: str | None = None,
) -> TaskSetup:
    """A task with its anchors; see ``jaxserve.make`` for the arguments.

    Naming the task's own hardware, model, table or trace is the same as naming none.

    Args:
      weights: directory with those of the agent ppo; default is the task's packaged ones, or
        NAME.weights beside a task file.

    Raises:
      InputError: anything unknown, unreadable or out of range; or ``weights`` that do not fit.
    """
    spec = load_task(task)
    named = {"hardware": hardware, "model": model, "table": table, "trace": trace}
    given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    env = make(spec, **given)
    inputs = task_inputs(spec, **given)
    own = _own_inputs(spec) if given else inputs
    changes = {name: value for name, value in given.items() if inputs[name] != own.get(name)}
    if weights is not None:
        from jaxserve.agents.weights import load_weights

        load_weights(
            weights, env, spec.name
        )  # who names some wants to hear at once that they do not fit
    elif spec.file is not None:
        weights = spec.file.with_suffix(".weights")
    else:
        weights = packaged_weights(spec.name)
    anchors, note = None, None
    if changes:
        note = f"no scores, because the anchors are for the task's own {next(iter(changes))}"
    else:
        try:
            anchors = load_anchors(spec)
        except InputError as error:
            note = f"no scores: {error}"
    return TaskSetup(env, spec, inputs, changes, anchors, note, weights)


def _own_inputs(spec: TaskSpec) -> Mapping[str, Any]:
    """Those of the task itself; none where it has no packaged table, so that one must be named."""
    try:
        return task_inputs(spec)
    except InputError:
        return {}


def packaged_weights(task: str) -> Path:
    """Directory of the weights shipped for a task; it exists where there are any."""
    return data_dir() / "weights" / task


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


def playable(names: Sequence[str], setup: TaskSetup) -> tuple[str, ...]:
    """Those of ``names`` that need no weights, or have them."""
    trained = (setup.weights / "weights.json").is_file()
    return tuple(name for name in names if trained or name != "ppo")


def best_static_policy(setup: TaskSetup, progress: Progress | None = None) -> StaticPolicy:
    """The frozen best static setting of the task, or that of a quick search on training seeds."""
    if setup.anchors is not None:
        return StaticPolicy(make_action(**setup.anchors.best_static_action))
    from jaxserve.agents.search import best_static

    indices = best_static(
        setup.env,
        episode_keys(_QUICK_EPISODES, "train"),
        candidates=_QUICK_CANDIDATES,
        rounds=_QUICK_ROUNDS,
        keep=_QUICK_KEEP,
        progress=progress,
    )
    return StaticPolicy(action_at(jnp.asarray(indices)))


def _trained_policy(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.trained_on import warn_trained_elsewhere
    from jaxserve.agents.weights import load_weights

    policy = load_weights(setup.weights, setup.env, setup.spec.name)
    warn_trained_elsewhere(setup.weights, setup)
    return policy


def _planner(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.planner import planner_for

    return planner_for(setup.env)


def _regime_oracle(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.regime_oracle import search_regime_oracle

    static = best_static_policy(setup, progress).action
    return search_regime_oracle(setup.env, static, progress=progress)


def _check_known(name: str) -> None:
    if name not in agent_names():
        checks.refuse("agent", name, f"one of all, {', '.join(agent_names())}")


_AGENTS: dict[str, Callable[[TaskSetup, Progress | None], Policy]] = {
    "random": lambda setup, progress: RandomPolicy(),
    "default": lambda setup, progress: default_policy(setup.env),
    "best_static": best_static_policy,
    "heuristic": lambda setup, progress: HeuristicPolicy(),
    "ppo": _trained_policy,
}
"""Those that ``all`` stands for, in the order of the table."""

_PRIVILEGED: dict[str, Callable[[TaskSetup, Progress | None], Policy]] = {
    "planner": _planner,
    "regime_oracle": _regime_oracle,
}
"""Yardsticks that are shown the simulator's state; each takes a minute or two."""

PRIVILEGED_AGENTS = tuple(_PRIVILEGED)
"""Names of the agents that know what no operator sees."""
