"""A task on a deployment, as agents are trained, evaluated and compared on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress, stage_progress
from jaxserve.agents.recorded_episodes import (
    disjoint_episodes,
    is_recorded,
    spread_order,
    training_part,
)
from jaxserve.datafiles import data_dir
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.fields import Tier
from jaxserve.registry import make
from jaxserve.seeds import episode_keys
from jaxserve.sim.machine.assumptions import assumed_times
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import TableMetadata
from jaxserve.sim.traffic.trace_classes import class_map
from jaxserve.sim.traffic.traces import Trace, load_trace
from jaxserve.tasks.anchors import Anchors, load_anchors
from jaxserve.tasks.inputs import InputFiles, task_inputs
from jaxserve.tasks.own_deployment import OwnDeployment, own_slos, with_own_deployment
from jaxserve.tasks.replay import trace_path
from jaxserve.tasks.spec import CLASS_COUNT, TaskSpec, load_task
from jaxserve.tasks.traffic import stream_classes

_MIN_DOUBT, _MAX_DOUBT = 0.1, 0.3
_DOUBT_OF_FIT = 2.0
"""Range of a table's doubt, and its size in mean errors of the table's fit. Fits were up to 17 %
off where they extrapolate, and tables of data sheets up to 10 % off (docs/fidelity.md)."""
MAX_SEARCH_EPISODES = 512
"""Training episodes of a search where traffic is drawn."""


@dataclass(frozen=True)
class TaskSetup:
    """A task on a deployment, as agents are trained, evaluated and compared on it."""

    env: ServeEnv
    spec: TaskSpec
    inputs: Mapping[str, Any]
    """names and digests of everything that ``env`` was built from, see
    ``jaxserve.tasks.inputs``."""
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
    named_policy: Policy | None = None
    """policy of weights that the user named; None if ``weights`` is the default directory."""
    trace: Trace | None = None
    """recorded traffic of the user's own; None where the task's traffic stays."""
    doubt: float = 0.0
    """relative doubt of the latency table's times; 0 for a task with anchors, whose table is exact
    by definition."""
    assumed: tuple[str, ...] = ()
    """sentences on kernels whose times rest on an assumption, see ``assumed_times``."""

    @property
    def has_parts(self) -> bool:
        """Whether the traffic is a recording whose parts train and test apart. The recording of a
        built-in task is whole: its scores are those of random places in it."""
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

    def search_episodes(self, count: int | None = None) -> tuple[ServeEnv, jax.Array]:
        """Training episodes of a search, in an order of which every beginning is spread evenly over
        a recording.

        Args:
          count: at most; default is all of a recording, and ``MAX_SEARCH_EPISODES`` of drawn
            traffic.

        Raises:
          InputError: as ``training_env``.
        """
        if not self.has_parts:
            return self.env, episode_keys(count or MAX_SEARCH_EPISODES, "train")
        env, keys = disjoint_episodes(self.env, "train", count)
        return env, keys[spread_order(len(keys))]


def load_setup(
    task: str | int,
    weights: Path | None = None,
    progress: Progress | None = None,
    fields: Mapping[str, Any] | None = None,
    **own: Any,
) -> TaskSetup:
    """A task with its anchors.

    Naming the task's own hardware, model, table or trace is the same as naming none.

    Args:
      weights: directory with those of the agent ppo; default is the task's packaged ones, or
        NAME.weights beside a task file.
      progress: told about the reading of a large trace.
      fields: fields of ``TaskSpec`` to change, such as ``window_s``; a recording of the user's own
        is then the traffic, so that there are no anchors.
      own: fields of ``jaxserve.tasks.own_deployment.OwnDeployment``.

    Raises:
      InputError: anything unknown, unreadable or out of range; or ``weights`` that do not fit.
    """
    spec = load_task(task)
    said = OwnDeployment(**own)
    reader = InputFiles()
    own_spec, given = with_own_deployment(spec, said, reader)
    own_spec = dataclasses.replace(own_spec, **(fields or {}))
    trace = _own_trace(spec, said, progress)
    files: dict[str, Any] = given if trace is None else {**given, "trace": trace}
    env = make(own_spec, slos=own_slos(said), **files)
    inputs = _inputs(own_spec, said, given, reader)
    task_itself = _inputs_of_task(spec, reader) if said.given else inputs
    changes = {
        name: value
        for name, value in said.given.items()
        if inputs.get(name, value) != task_itself.get(name)
        or (name == "trace" and said.part.stated)
    }
    named_policy = None
    if weights is not None:
        from jaxserve.agents.weights import load_weights

        named_policy = load_weights(weights, env, spec.name)
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
    metadata = _metadata(own_spec, given, reader)
    fit_error = metadata.fit_error
    doubt = 0.0 if anchors is not None else _doubt(fit_error)
    tiers = tuple(Tier) if "quantization_tier" in own_spec.knobs else (Tier.FP16,)
    hardware, model = given.get("hardware", own_spec.hardware), given.get("model", own_spec.model)
    assumed = () if fit_error else assumed_times(hardware, model, metadata.stack, tiers)
    kinds = _kinds(own_spec, trace)
    return TaskSetup(
        env,
        own_spec,
        inputs,
        changes,
        anchors,
        note,
        weights,
        kinds,
        named_policy,
        trace,
        doubt,
        tuple(assumed),
    )


def _own_trace(spec: TaskSpec, own: OwnDeployment, progress: Progress | None) -> Trace | None:
    """The trace of the user's own; None where the task's traffic stays.

    Raises:
      InputError: the trace cannot be read, or its unit or part is given without a trace.
    """
    part = own.part
    if own.trace is None:
        if own.time_unit is not None or part.stated:
            options = ["--time-unit"] if own.time_unit is not None else list(part.stated)
            raise InputError(f"{options[0]} is about a trace; name the trace as well (--trace)")
        return None
    path = trace_path(own.trace)
    if spec.trace and path == trace_path(spec.trace) and not part.stated:
        return None
    reading = stage_progress(f"reading {path.name}, MiB", progress)
    return load_trace(path, time_unit=own.time_unit, part=part, advance=reading)


def _kinds(spec: TaskSpec, trace: Trace | None) -> dict[str, slice]:
    """Places of the traffic classes of each kind, see ``TaskSetup.kinds``."""
    if trace is None or trace.kind is None:
        return stream_classes(spec)
    of_class = np.asarray(class_map(trace.within_table(), CLASS_COUNT).kind)
    found = {kind: np.flatnonzero(of_class == i) for i, kind in enumerate(trace.kinds)}
    return {kind: slice(int(at[0]), int(at[-1]) + 1) for kind, at in found.items()}


def _inputs(
    spec: TaskSpec, own: OwnDeployment, files: Mapping[str, str], reader: InputFiles
) -> dict[str, Any]:
    """Inputs of a setup, see ``TaskSetup.inputs``; with the user's own numbers and knobs, if
    any."""
    numbers = {
        name: list(value) if isinstance(value, tuple) else value  # as a file gives it back
        for name, value in own.given.items()
        if name not in files
    }
    return dict(task_inputs(spec, files=reader, **files)) | ({"own": numbers} if numbers else {})


def _metadata(spec: TaskSpec, files: Mapping[str, str], reader: InputFiles) -> TableMetadata:
    """Metadata of the table that a task is played with."""
    gpu = load_gpu(files.get("hardware", spec.hardware))
    llm = load_model(files.get("model", spec.model))
    table = files.get("table", f"{llm.name}__{gpu.name}")
    return reader.table(table).metadata


def _doubt(fit_error: float | None) -> float:
    """Relative doubt of the times of a table."""
    return min(max(_DOUBT_OF_FIT * (fit_error or 0.0), _MIN_DOUBT), _MAX_DOUBT)


def _inputs_of_task(spec: TaskSpec, reader: InputFiles) -> Mapping[str, Any]:
    """Inputs of the task itself; empty if it has no packaged table, so that one must be named."""
    try:
        return task_inputs(spec, files=reader)
    except InputError:
        return {}


def packaged_weights(task: str) -> Path:
    """Directory of the weights shipped for a task; tasks without weights have none."""
    return data_dir() / "weights" / task
