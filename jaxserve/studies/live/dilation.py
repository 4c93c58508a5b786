"""Time dilation: a device whose steps take ``factor`` times as long, and its dilated task.

A host may need longer for a token than the device it emulates. Dilation slows down the device and
all times of the task: the same requests meet the same device in the same order, on a slower clock.
The simulators know nothing of dilation. (Stays in a traffic regime are rounded to whole seconds of
the deployment's clock.)
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxserve.errors import InputError
from jaxserve.sim.machine.deployment import DeploymentSettings
from jaxserve.sim.machine.stack import serve
from jaxserve.sim.table.build import build, fill_grid
from jaxserve.sim.table.file import TableFile
from jaxserve.tasks.spec import Regime, TaskSpec

_LONGER_IN_TASK = ("window_s", "cycle_period_s")
_LONGER_IN_DEPLOYMENT = ("restart_s", "rerole_s", "oom_restart_s", "frontend_s", "frontend_tail_s")
_LONGER_IN_STREAM = ("ttft_slo_s", "tpot_slo_s")
_SLOWER_WITH_BURSTS = ("burst_start_per_s", "burst_stop_per_s")


def dilated_task(content: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Content of a task file for a device that is ``factor`` times as slow.

    Times missing in the file are added, because their defaults would not be dilated.

    Raises:
      InputError: the traffic is a recording, whose times are in another file.
    """
    if "trace" in content:
        raise InputError(f"a task that replays {content['trace']!r} cannot be dilated")
    task = copy.deepcopy(dict(content))
    for name in _LONGER_IN_TASK:
        task[name] = factor * task.get(name, getattr(TaskSpec, name))
    deployment = dict(task.get("deployment", {}))
    for name in _LONGER_IN_DEPLOYMENT:
        deployment[name] = factor * deployment.get(name, getattr(DeploymentSettings, name))
    task["deployment"] = deployment
    for stream in task["streams"]:
        stream |= {name: factor * stream[name] for name in _LONGER_IN_STREAM}
    for regime in task["regimes"]:
        regime["dwell_s"] = [factor * end for end in regime.get("dwell_s", Regime.dwell_s)]
        bursts = "burst_start_per_s" in regime
        for name in ("rate_rps", *(_SLOWER_WITH_BURSTS if bursts else ())):
            regime[name] = regime.get(name, getattr(Regime, name, None)) / factor
    return task


def dilated_table(hardware: str, model: str, tensor_parallel: int, factor: float) -> TableFile:
    """Latency table of a model on a GPU that is ``factor`` times as slow.

    Raises:
      InputError: a name is unknown, or the model does not fit on the GPU.
    """
    known = build(hardware, model, tensor_parallel=tensor_parallel).metadata
    slow = dataclasses.replace(known, cost_model=known.cost_model.slower(factor))
    return fill_grid(slow, *serve(hardware, model, known.stack))
