"""The agents that can be evaluated by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
from jaxserve.agents.recorded_episodes import (
    disjoint_episodes,
    is_recorded,
    spread_order,
    training_part,
)
from jaxserve.agents.search import StaticSearch, search_static
from jaxserve.datafiles import data_dir
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.grids import action_at, grid_sizes
from jaxserve.registry import make
from jaxserve.runtime.jax_setup import cache_folder
from jaxserve.seeds import episode_keys
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.traffic.trace_classes import class_map
from jaxserve.sim.traffic.traces import Trace, load_trace
from jaxserve.spaces import make_action
from jaxserve.tasks.anchors import Anchors, load_anchors
from jaxserve.tasks.inputs import task_inputs
from jaxserve.tasks.own_deployment import OwnDeployment, own_slos, with_own_deployment
from jaxserve.tasks.replay import trace_path
from jaxserve.tasks.spec import CLASS_COUNT, TaskSpec, load_task
from jaxserve.tasks.traffic import stream_classes

_LEAST_DOUBT, _MOST_DOUBT = 0.1, 0.3
_DOUBT_OF_FIT = 2.0
"""Range of a table's doubt, and its size in mean errors of the table's fit. Fits were up to 17 %
off where they extrapolate, and tables of data sheets up to 10 % off (docs/fidelity.md)."""
_MOST_EPISODES = 512
"""Training episodes of a search where traffic is drawn."""


@dataclass(frozen=True)
class TaskSetup:
    """A task on a deployment, as agents are trained, evaluated and compared on it."""

    env: ServeEnv
    spec: TaskSpec
    inputs: Mapping[str, Any]
    """all that ``env`` was built from, see ``jaxserve.tasks.inputs``."""
    changes: Mapping[str, Any]
    """arguments of ``load_setup`` that replace something of the task's own, as they were given;
    empty for the task itself."""
    anchors: Anchors | None
    """None where scores mean nothing: other hardware or traffic than the task's own."""
    note: str | None
    """why there are no anchors, in one sentence."""
    weights: Path
    """directory of the weights that the agent ppo has here."""
    kinds: Mapping[str, slice]
    """places of the traffic classes of each kind of request, by name."""
    doubt: float = 0.0
    """relative doubt of the latency table's times; 0 for a task with anchors, whose table is exact
    by definition."""

    @property
    def has_parts(self) -> bool:
        """Whether the traffic is a recording of which one part trains and the other tests. The
        recording of a built-in task is whole: its scores are those of random places in it."""
        own = bool(self.changes) or self.spec.file is not None
        return own and is_recorded(self.env)

    @property
    def training_env(self) -> ServeEnv:
        """The environment that trains controllers.

        Raises:
          InputError: a recording is too short for a part that trains and one that tests.
        """
        return training_part(self.env) if self.has_parts else self.env

    def episodes(self, split: str, count: int) -> tuple[ServeEnv, jax.Array]:
        """The environment that plays episodes of a split, and their keys [N].

        N is ``count``, or all episodes of the split's part where a recording has fewer.

        Raises:
          InputError: as ``training_env``; also an unknown split.
        """
        if self.has_parts:
            return disjoint_episodes(self.env, split, count)
        return self.env, episode_keys(count, split)


def load_setup(task: str | int, weights: Path | None = None, **own: Any) -> TaskSetup:
    """A task with its anchors.

    Naming the task's own hardware, model, table or trace is the same as naming none.

    Args:
      weights: directory with those of the agent ppo; default is the task's packaged ones, or
        NAME.weights beside a task file.
      own: fields of ``jaxserve.tasks.own_deployment.OwnDeployment``.

    Raises:
      InputError: anything unknown, unreadable or out of range; or ``weights`` that do not fit.
    """
    spec = load_task(task)
    said = OwnDeployment(**own)
    own_spec, given = with_own_deployment(spec, said)
    trace = _own_trace(spec, said)
    files: dict[str, Any] = given if trace is None else {**given, "trace": trace}
    env = make(own_spec, slos=own_slos(said), **files)
    inputs = _inputs(own_spec, said, given)
    task_itself = _inputs_of_task(spec) if said.given else inputs
    changes = {
        name: value
        for name, value in said.given.items()
        if inputs.get(name, value) != task_itself.get(name)
    }
    if weights is not None:
        from jaxserve.agents.weights import load_weights

        load_weights(weights, env, spec.name)  # a user who names weights hears at once if they fit
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
    doubt = 0.0 if anchors is not None else _doubt(own_spec, given)
    kinds = _kinds(own_spec, trace)
    return TaskSetup(env, own_spec, inputs, changes, anchors, note, weights, kinds, doubt)


def _own_trace(spec: TaskSpec, own: OwnDeployment) -> Trace | None:
    """The trace of the user's own; None where the task's traffic stays."""
    if own.trace is None or (spec.trace and trace_path(own.trace) == trace_path(spec.trace)):
        return None
    return load_trace(trace_path(own.trace))


def _kinds(spec: TaskSpec, trace: Trace | None) -> dict[str, slice]:
    """See ``TaskSetup.kinds``."""
    if trace is None or trace.kind is None:
        return stream_classes(spec)
    of_class = np.asarray(class_map(trace.within_table(), CLASS_COUNT).kind)
    found = {kind: np.flatnonzero(of_class == i) for i, kind in enumerate(trace.kinds)}
    return {kind: slice(int(at[0]), int(at[-1]) + 1) for kind, at in found.items()}


def _inputs(spec: TaskSpec, own: OwnDeployment, files: Mapping[str, str]) -> dict[str, Any]:
    """See ``TaskSetup.inputs``; with the numbers and knobs of the user's own, where there are."""
    numbers = {
        name: list(value) if isinstance(value, tuple) else value  # as a file gives it back
        for name, value in own.given.items()
        if name not in files
    }
    return dict(task_inputs(spec, **files)) | ({"own": numbers} if numbers else {})


def _doubt(spec: TaskSpec, files: Mapping[str, str]) -> float:
    """Relative doubt of the times of the table that a task is played with."""
    gpu = load_gpu(files.get("hardware", spec.hardware))
    llm = load_model(files.get("model", spec.model))
    table = files.get("table", f"{llm.name}__{gpu.name}")
    error = read_table_file(table).metadata.fit_error or 0.0
    return min(max(_DOUBT_OF_FIT * error, _LEAST_DOUBT), _MOST_DOUBT)


def _inputs_of_task(spec: TaskSpec) -> Mapping[str, Any]:
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
    """The frozen best static setting of the task, or that of ``find_best_static``."""
    if setup.anchors is not None:
        return StaticPolicy(make_action(**setup.anchors.best_static_action))
    return static_policy(find_best_static(setup, progress))


def static_policy(found: StaticSearch) -> StaticPolicy:
    """The policy that plays the setting of a search."""
    return StaticPolicy(action_at(jnp.asarray(found.setting)))


def find_best_static(setup: TaskSetup, progress: Progress | None = None) -> StaticSearch:
    """Searches the best constant setting on all training episodes of a recording, or on up to
    ``_MOST_EPISODES`` where traffic is drawn.

    Rewards are kept on disk: a second call is at once, and a search that was cut off goes on.

    Raises:
      InputError: a recording is too short, see ``TaskSetup.training_env``; or no knob has a second
        value.
    """
    if grid_sizes(setup.env).max() == 1:
        knobs = ", ".join(setup.spec.knobs)
        raise InputError(f"there is nothing to search: {knobs} can take one value only here")
    if setup.has_parts:
        env, keys = disjoint_episodes(setup.env, "train")
        keys = keys[spread_order(len(keys))]
    else:
        env, keys = setup.env, episode_keys(_MOST_EPISODES, "train")
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

    policy = load_weights(setup.weights, setup.env, setup.spec.name)
    warn_trained_elsewhere(setup.weights, setup)
    return policy


def _planner(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.planner import planner_for

    return planner_for(setup.env)


def _regime_oracle(setup: TaskSetup, progress: Progress | None) -> Policy:
    from jaxserve.agents.regime_oracle import search_regime_oracle

    static = best_static_policy(setup, progress).action
    return search_regime_oracle(setup.training_env, static, progress=progress)


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
