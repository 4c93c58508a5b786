"""A user's own server and traffic in place of those of a task.

A table says which model, GPU and tensor parallelism it was measured on, so a user who names a table
need not say so again. A built-in task that is given a table or a trace of the user's own opens the
batch cap alone and has no memory limit: a user has no draft model, no other number format and no
limit unless the user says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import MAX_GPUS, TOKEN_BUDGETS
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import TableMetadata
from jaxserve.sim.traffic.trace_files.part import TracePart
from jaxserve.tasks.inputs import InputFiles, task_inputs
from jaxserve.tasks.slos import KindSlo, parse_slo
from jaxserve.tasks.spec import (
    MAX_TENSOR_PARALLEL,
    TPOT_SLO_S,
    TTFT_SLO_S,
    TaskSpec,
    parse_open_knobs,
)

OWN_KNOBS = ("batch_cap",)
"""Knobs of a server of which only table or traffic are known."""
_FILES = ("hardware", "model", "table", "trace")


@dataclass(frozen=True)
class OwnDeployment:
    """Statements of a user in place of a task's own; None where the task's own stands."""

    hardware: str | None = None
    """GPU name, or path of a GPU file."""
    model: str | None = None
    """model name, or path of a file such as Hugging Face's config.json."""
    table: str | None = None
    """path of a latency table, or name of a packaged one."""
    trace: str | None = None
    """path of a recorded trace."""
    time_unit: str | None = None
    """unit of the trace's times, ``s`` or ``ms``; None for that of its format."""
    trace_from: str | None = None
    """begin of the part of the trace that is taken, see ``TracePart.start``."""
    trace_for: str | None = None
    """its duration, see ``TracePart.length``."""
    trace_sample: float | None = None
    """share of its requests, see ``TracePart.sample``."""
    ttft_s: float | None = None
    """objective on the time to first token, s."""
    tpot_s: float | None = None
    """objective on the mean time per output token after the first, s."""
    gpus: int | None = None
    """replicas, each of ``tensor_parallel`` GPUs."""
    tensor_parallel: int | None = None
    """GPUs that share every layer."""
    token_budget: int | None = None
    """tokens that an iteration may process (vLLM's max_num_batched_tokens)."""
    knobs: tuple[str, ...] | None = None
    """names of the knobs to turn."""
    slos: tuple[str, ...] | None = None
    """objectives of each kind of the trace's requests, see ``jaxserve.tasks.slos.parse_slo``."""

    @property
    def part(self) -> TracePart:
        """The part of the trace that is taken."""
        return TracePart(self.trace_from, self.trace_for, self.trace_sample)

    @property
    def given(self) -> dict[str, Any]:
        """Fields that say something, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


def with_own_deployment(
    spec: TaskSpec, own: OwnDeployment, reader: InputFiles | None = None
) -> tuple[TaskSpec, dict[str, Any]]:
    """A task on the user's own deployment.

    Args:
      spec: the task.
      own: statements of the user.
      reader: reads each file once for several calls.

    Returns:
      the task, and the arguments ``hardware``, ``model``, ``table`` and ``trace`` of
      ``jaxserve.make``, those that are given. Objectives of kinds go by ``own_slos``.

    Raises:
      InputError: a value is out of range, or the table is of another model, GPU or tensor
        parallelism than the one that is named.
    """
    reader = reader or InputFiles()
    files = {name: getattr(own, name) for name in _FILES}
    deployment: dict[str, Any] = {}
    if own.gpus is not None:
        deployment["num_gpus"] = checks.whole("gpus", own.gpus, 1, MAX_GPUS)
    if own.tensor_parallel is not None:
        deployment["tensor_parallel"] = checks.whole(
            "tensor_parallel", own.tensor_parallel, 1, MAX_TENSOR_PARALLEL
        )
    if own.token_budget is not None:
        deployment["token_budget"] = checks.whole("token_budget", own.token_budget, *TOKEN_BUDGETS)
    if own.table is not None:
        measured = reader.table(own.table).metadata
        for field in ("model", "hardware"):
            given = getattr(own, field)
            files[field] = _agreed(own.table, field, given, getattr(spec, field), measured)
        group = measured.tensor_parallel
        if own.tensor_parallel not in (None, group):
            raise InputError(
                f"table {own.table} was measured with tensor_parallel {group}; tensor_parallel is "
                f"{own.tensor_parallel}: leave it out or name another table"
            )
        deployment["tensor_parallel"] = group
    if own.ttft_s is not None:
        checks.seconds("ttft", own.ttft_s, *TTFT_SLO_S)
    if own.tpot_s is not None:
        checks.seconds("tpot", own.tpot_s, *TPOT_SLO_S)
    is_own = spec.file is None and _is_own(spec, files, reader)
    spec = dataclasses.replace(
        spec,
        deployment=dataclasses.replace(spec.deployment, **deployment),
        streams=tuple(
            dataclasses.replace(
                stream,
                ttft_slo_s=stream.ttft_slo_s if own.ttft_s is None else own.ttft_s,
                tpot_slo_s=stream.tpot_slo_s if own.tpot_s is None else own.tpot_s,
            )
            for stream in spec.streams
        ),
    )
    if is_own:
        objective = dataclasses.replace(spec.objective, memory_weight=0.0)
        spec = dataclasses.replace(spec, knobs=OWN_KNOBS, objective=objective)
    if own.knobs is not None:
        spec = dataclasses.replace(spec, knobs=parse_open_knobs(own.knobs, "knobs"))
    return spec, {name: value for name, value in files.items() if value is not None}


def own_slos(own: OwnDeployment) -> dict[str, KindSlo] | None:
    """Objectives by kind; None where none are given.

    Raises:
      InputError: a text is not of the form that ``parse_slo`` reads, or a kind has two.
    """
    if own.slos is None:
        return None
    if own.ttft_s is not None or own.tpot_s is not None:
        raise InputError(
            "objectives are given for all requests and for kinds of them; leave out --ttft and "
            "--tpot, or --slo"
        )
    found = [parse_slo(text) for text in own.slos]
    kinds = [kind for kind, _ in found]
    twice = [kind for kind in kinds if kinds.count(kind) > 1]
    if twice:
        raise InputError(f"--slo gives objectives of {twice[0]!r} twice; give them once")
    return dict(found)


def _is_own(spec: TaskSpec, files: Mapping[str, str | None], reader: InputFiles) -> bool:
    """Whether traffic or times are not the task's; a copy of a file is the same."""
    if files["table"] is None and files["trace"] is None:
        return False
    given = {name: value for name, value in files.items() if value is not None}
    own, here = (task_inputs(spec, files=reader, **each) for each in ({}, given))
    return any(own[name] != here[name] for name in ("table", "trace"))


def _agreed(
    table: str, field: str, given: str | None, own: str, measured: TableMetadata
) -> str | None:
    """The GPU or the model to load for a table; None for the task's own.

    Args:
      field: ``hardware`` or ``model``.
      given: what the user names.
      own: what the task names.

    Raises:
      InputError: the user names another one than the table's.
    """
    load = load_gpu if field == "hardware" else load_model
    wanted = getattr(measured, field)
    if given is None:
        return None if load(own).name == wanted else wanted
    found = load(given).name
    if found != wanted:
        raise InputError(
            f"table {table} was measured on {field} {wanted}; {field} is {found}: leave it out or "
            "name another table"
        )
    return given
