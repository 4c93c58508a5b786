"""Variants of a task that no policy was trained in: other bursts, another GPU, recorded traffic.

Scores are defined for the task itself only. In a variant the measure is the gain on the task's best
static setting, replayed in the same episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.registry import make
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.table.file import table_path
from jaxserve.sim.traffic.traces import Trace
from jaxserve.tasks.inputs import task_inputs
from jaxserve.tasks.spec import Regime

BURST_SCALES = (0.7, 1.5)
RANDOMISATION = 0.2
"""Half-width of the log-uniform slowness of the other GPU, drawn for each episode."""


@dataclass(frozen=True)
class Variant:
    """A task with one thing changed."""

    name: str
    """name of the variant."""
    setup: TaskSetup | None
    """changed task; None if the task has no such variant."""
    reason: str = ""
    """reason why the task has no such variant."""


def variants(
    setup: TaskSetup, hardware: str, trace: Path | None, recorded: Trace | None
) -> tuple[Variant, ...]:
    """All variants of a task.

    Args:
      setup: task and environment.
      hardware: name of the other GPU.
      trace: file of recorded traffic; None leaves this variant out.
      recorded: requests of the file.

    Raises:
      InputError: the GPU is unknown, or the task cannot replay the trace.
    """
    bursts = [_other_bursts(setup, scale) for scale in BURST_SCALES]
    return (*bursts, _other_hardware(setup, hardware), _recorded(setup, trace, recorded))


def _other_bursts(setup: TaskSetup, scale: float) -> Variant:
    name = f"bursts x{scale:g}"
    if setup.spec.trace is not None:
        return Variant(name, None, "its traffic is a recording")
    if not any(_bursts(regime) for regime in setup.spec.regimes):
        return Variant(name, None, "its traffic has no bursts")
    return _variant(setup, name, {"burst_scale": scale})


def _other_hardware(setup: TaskSetup, hardware: str) -> Variant:
    spec = setup.spec
    name = load_gpu(hardware).name  # an unknown name is an error, unlike a GPU without a table
    if name == load_gpu(spec.hardware).name:
        return Variant(name, None, "it is the task's own GPU")
    try:
        table_path(f"{spec.model}__{name}")
    except InputError as error:
        return Variant(name, None, str(error))
    overrides = {"randomisation": max(spec.randomisation, RANDOMISATION)}
    return _variant(setup, name, overrides, hardware=hardware)


def _recorded(setup: TaskSetup, trace: Path | None, recorded: Trace | None) -> Variant:
    spec = setup.spec
    if trace is None or recorded is None:
        return Variant("recorded trace", None, "no trace was named with --trace")
    name = f"trace {trace.name}"
    first = spec.streams[0]
    own = {"name": first.name, "prompt": first.prompt, "output": first.output, "bins": first.bins}
    kinds = {dataclasses.replace(stream, **own) for stream in spec.streams}
    if len(kinds) > 1:
        reason = f"a trace does not say which of its {len(kinds)} kinds a request is of"
        return Variant(name, None, reason)
    # Streams that differ only in lengths are one kind, which takes the trace's lengths.
    one = dataclasses.replace(spec, streams=(first,))
    return _variant(dataclasses.replace(setup, spec=one, trace=recorded), name, trace=trace)


def _variant(
    setup: TaskSetup, name: str, overrides: Mapping[str, Any] | None = None, **files: Any
) -> Variant:
    read: dict[str, Any] = {} if setup.trace is None else {"trace": setup.trace}
    env = make(setup.spec, overrides=overrides, **files | read)
    own = {"overrides": dict(overrides or {})}
    changed = dataclasses.replace(
        setup,
        env=env,
        inputs=task_inputs(setup.spec, **files) | own,
        changes=files | own,
        anchors=None,
        note="scores belong to the task as it is",
    )
    return Variant(name, changed)


def _bursts(regime: Regime) -> bool:
    return regime.burst_start_per_s > 0.0 and max(regime.burst_multiplier) > 1.0
