"""A task for exactly what a deployment offers: its other knobs locked, its limits, its size."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.gateway.knob_values import obeyed
from jaxserve.live.readings import EngineState
from jaxserve.sim.machine.deployment import MAX_GPUS
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS
from jaxserve.tasks.spec import TaskSpec, parse_task

TURNED = ("exact", "approximated")


def derive(
    base: Mapping[str, Any], name: str, knobs: Mapping[str, Any], engines: EngineState
) -> dict[str, Any]:
    """The content of a task file.

    A knob stays free if the base task frees it and the deployment turns it. The memory term goes,
    since a smaller KV budget frees no memory of a running engine.

    Args:
      base: content of the task file that says what the traffic and its objectives are.
      name: of the new task, for errors.
      knobs: the answer of the gateway's ``/control/knobs``, as ``parse_knobs`` gives it.
      engines: what the engines say of themselves.

    Raises:
      InputError: no knob is left, there are too many engines, or ``base`` is no task.
    """
    spec = parse_task(base, name)
    offered = knobs["knobs"]
    free = [knob for knob in spec.knobs if offered[knob]["how"] in TURNED]
    if not free:
        reasons = "; ".join(f"{knob}: {offered[knob].get('reason')}" for knob in spec.knobs)
        raise InputError(f"the deployment turns none of the task's knobs: {reasons}")
    if engines.count > MAX_GPUS:
        raise InputError(f"there are {engines.count} engines; a task has at most {MAX_GPUS} GPUs")
    task = copy.deepcopy(dict(base))
    locked = dict(spec.locked)
    limits: dict[str, list[float]] = {}
    for knob in KNOBS:
        bound, offer = ACTION_BOUNDS[knob], offered[knob]
        if offer["how"] in TURNED:
            low, high = max(offer["least"], bound.low), min(offer["most"], bound.high)
            limits[knob] = [bound.number(low), bound.number(high)]
            static = offer["static"]
            value = DEFAULT_ACTION[knob] if static is None else static
            locked[knob] = bound.number(min(max(value, low), high))
    deployment = dict(task.get("deployment", {})) | {"num_gpus": engines.count}
    budget = offered["token_budget"].get("static")
    if budget is not None:
        deployment["token_budget"] = int(budget)
    if engines.kv_tokens is not None:
        deployment["kv_pool_tokens"] = int(engines.kv_tokens)
    task |= {
        "title": f"{task['title']}, live"[:80],
        "knobs": free,
        "locked": locked,
        "limits": limits,
        "deployment": deployment,
        "objective": dict(task.get("objective", {})) | {"memory_weight": 0.0},
    }
    task.pop("alias", None)
    return task


def echo(knobs: Mapping[str, Any], wanted: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """What became of an action, knob by knob: ``how`` it is turned here (exact, approximated,
    restart_required or unsupported), what was ``asked``, and what is in force ``now``.

    Args:
      knobs: the answer of ``/control/knobs`` after the action.
    """
    return {
        name: {"how": offer["how"], "asked": wanted.get(name), "now": offer.get("now")}
        for name, offer in knobs["knobs"].items()
        if name in KNOBS
    }


def unacknowledged(knobs: Mapping[str, Any], told: Mapping[str, float]) -> str | None:
    """The first knob that has not the value that it was told, in a sentence."""
    for name, value in told.items():
        now = knobs["knobs"][name].get("now")
        if not obeyed(name, value, now):
            return f"{name} is {now} after it was told {value:g}"
    return None


def check_objectives(spec: TaskSpec, state: Mapping[str, Any]) -> None:
    """Whether the gateway judges requests as the task does.

    Args:
      state: the answer of ``/control/state``.

    Raises:
      InputError: a stream of the task is no class of the gateway, or has other objectives there.
    """
    objectives = JsonObject(state, "the gateway's state").inside("objectives")
    for stream in spec.streams:
        wanted = {"ttft_s": stream.ttft_slo_s, "tpot_s": stream.tpot_slo_s}
        found = objectives.get(stream.name)
        given = found if isinstance(found, Mapping) else {}
        for name, value in wanted.items():
            if not math.isclose(value, given.get(name) or math.inf, rel_tol=1e-6):
                raise InputError(
                    f"the gateway does not judge the class {stream.name} as the task does; start "
                    f"it with --slo {stream.name}:ttft={stream.ttft_slo_s:g},"
                    f"tpot={stream.tpot_slo_s:g}"
                )
