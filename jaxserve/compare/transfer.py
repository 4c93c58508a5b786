"""Settings that a policy was not trained in: other bursts, another GPU, recorded traffic.

Scores belong to a task as it is, so these settings have none: what counts there is the gain on the
best static setting of the task, replayed in the same episodes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.agents.panel import Setting
from jaxserve.errors import InputError
from jaxserve.registry import make
from jaxserve.sim.hardware import load_gpu
from jaxserve.sim.table_file import table_path
from jaxserve.sim.traces import load_trace
from jaxserve.tasks.spec import Regime

BURST_SCALES = (0.7, 1.5)
RANDOMISATION = 0.2
"""Half-width of the log-uniform slowness of the other GPU, drawn anew for each episode."""


@dataclass(frozen=True)
class Variant:
    """A setting to transfer to."""

    name: str
    setting: Setting | None
    """None where there is no such setting."""
    reason: str = ""
    """why there is none."""


def variants(setting: Setting, hardware: str, trace: Path | None) -> tuple[Variant, ...]:
    """All settings to transfer to from a task.

    Args:
      hardware: the other GPU.
      trace: recorded traffic; None leaves it out.

    Raises:
      InputError: the GPU is unknown, or the trace cannot be read.
    """
    bursts = [_other_bursts(setting, scale) for scale in BURST_SCALES]
    return (*bursts, _other_hardware(setting, hardware), _recorded(setting, trace))


def _other_bursts(setting: Setting, scale: float) -> Variant:
    name = f"bursts x{scale:g}"
    if setting.spec.trace is not None:
        return Variant(name, None, "its traffic is a recording")
    if not any(_bursts(regime) for regime in setting.spec.regimes):
        return Variant(name, None, "its traffic has no bursts")
    return _variant(setting, name, overrides={"burst_scale": scale})


def _other_hardware(setting: Setting, hardware: str) -> Variant:
    spec = setting.spec
    load_gpu(hardware)  # an unknown one is a mistake, not a GPU without a table
    if hardware == spec.hardware:
        return Variant(hardware, None, "it is the task's own GPU")
    try:
        table_path(f"{spec.model}__{hardware}")
    except InputError as error:
        return Variant(hardware, None, str(error))
    overrides = {"randomisation": max(spec.randomisation, RANDOMISATION)}
    return _variant(setting, hardware, hardware=hardware, overrides=overrides)


def _recorded(setting: Setting, trace: Path | None) -> Variant:
    spec = setting.spec
    if trace is None:
        return Variant("recorded trace", None, "no trace was named with --trace")
    name = f"trace {trace.name}"
    first = spec.streams[0]
    own = {"name": first.name, "prompt": first.prompt, "output": first.output, "bins": first.bins}
    kinds = {dataclasses.replace(stream, **own) for stream in spec.streams}
    if len(kinds) > 1:
        load_trace(trace)  # one that cannot be read is a mistake, whoever replays it
        reason = f"a trace does not say which of its {len(kinds)} kinds a request is of"
        return Variant(name, None, reason)
    # Streams that differ in lengths alone are one kind, which takes the trace's lengths.
    one = dataclasses.replace(spec, streams=(first,))
    return _variant(dataclasses.replace(setting, spec=one), name, trace=trace)


def _variant(setting: Setting, name: str, **changes: Any) -> Variant:
    env = make(setting.spec, **changes)
    env = dataclasses.replace(env, name=f"{env.name}, {name}")
    note = "scores belong to the task as it is"
    return Variant(name, dataclasses.replace(setting, env=env, anchors=None, note=note))


def _bursts(regime: Regime) -> bool:
    return regime.burst_start_per_s > 0.0 and max(regime.burst_multiplier) > 1.0
