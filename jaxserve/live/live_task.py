"""Task files for a deployment: its knobs, their limits, and its size."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.fields import MAX_GPUS
from jaxserve.gateway.knobs.values import obeyed
from jaxserve.live.readings import TURNED, EngineState
from jaxserve.sim.table.file import Calibration
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, KNOBS
from jaxserve.tasks.spec import TaskSpec, parse_task


def derive(
    base: Mapping[str, Any],
    name: str,
    knobs: Mapping[str, Any],
    engines: EngineState,
    calibration: Calibration | None = None,
) -> dict[str, Any]:
    """The content of a task file for a deployment.

    A knob stays free if the base task frees it and the deployment turns it. The objective's memory
    term is dropped, since a smaller KV budget frees no memory of a running engine. A calibration
    restricts tier and speculation depth to measured values, and gives the front end's delay.
    Engines behind the gateway are the places of the base task's fleet; without one they run all
    the time.

    Args:
      base: content of the task file with the traffic and its objectives.
      name: name of the new task, for errors.
      knobs: the gateway's ``/control/knobs``, as ``parse_knobs`` returns it.
      engines: state of the engines.
      calibration: calibration of the deployment's table; None trusts every tier and depth.

    Raises:
      InputError: no knob is left, there are too many engines, the engines run at values that were
        not measured, or ``base`` is no task.
    """
    spec = parse_task(base, name)
    offered = _offers(knobs)
    if "replicas" in spec.knobs:
        offered["replicas"] = _SCALED
    free = [knob for knob in spec.knobs if offered[knob]["how"] in TURNED]
    measured = {} if calibration is None else _measured(calibration)
    for knob, (least, most) in measured.items():
        _check_measured(knob, offered[knob], least, most)
        if knob in free and max(least, offered[knob]["least"]) >= min(most, offered[knob]["most"]):
            free.remove(knob)
    if not free:
        reasons = "; ".join(f"{knob}: {_why_locked(offered[knob])}" for knob in spec.knobs)
        raise InputError(f"the deployment turns none of the task's knobs: {reasons}")
    if engines.count > MAX_GPUS:
        raise InputError(f"there are {engines.count} engines; a task has at most {MAX_GPUS} GPUs")
    task = copy.deepcopy(dict(base))
    locked = dict(spec.locked)
    limits: dict[str, list[float]] = {}
    for knob in KNOBS:
        bound, offer = ACTION_BOUNDS[knob], offered[knob]
        least, most = measured.get(knob, (bound.low, bound.high))
        locked[knob] = bound.number(min(max(locked[knob], least), most))
        if offer["how"] in TURNED and offer is not _SCALED:
            low, high = max(offer["least"], least), min(offer["most"], most)
            limits[knob] = [bound.number(low), bound.number(high)]
            static = offer["static"]
            value = DEFAULT_ACTION[knob] if static is None else static
            locked[knob] = bound.number(min(max(value, low), high))
    deployment = dict(task.get("deployment", {}))
    if calibration is not None:
        deployment |= {"frontend_s": calibration.frontend_s, "frontend_tail_s": 0.0}
    deployment["num_gpus"] = engines.count
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


def _offers(knobs: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The gateway's offer of every knob, and of what it has beside them."""
    return dict.fromkeys(KNOBS, _NO_OFFER) | knobs["knobs"]


_NO_OFFER = {"how": "unsupported", "reason": "the gateway starts and stops no replicas"}
"""Offer of a knob that a gateway does not know."""
_SCALED = {"how": "exact"}
"""Offer of the replicas of a fleet, by an actuator."""


def _measured(calibration: Calibration) -> dict[str, tuple[float, float]]:
    """Measured range of the knobs that a table may cover in part."""
    depths = calibration.depths
    return {
        "speculation_depth": (min(depths), max(depths)),
        "quantization_tier": (calibration.tier, calibration.tier),
    }


def _check_measured(knob: str, offer: Mapping[str, Any], least: float, most: float) -> None:
    """Raises InputError if the static value of a knob is known and was not measured."""
    static = offer.get("static")
    if static is not None and not least <= static <= most:
        raise InputError(
            f"without a command {knob} is {static:g}, and the table was measured at "
            f"{_span(least, most)}; calibrate the engines as they run"
        )


def _why_locked(offer: Mapping[str, Any]) -> str:
    if offer["how"] in TURNED:
        return "the table was measured at one value of it"
    return str(offer.get("reason"))


def _span(least: float, most: float) -> str:
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


def echo(knobs: Mapping[str, Any], wanted: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """The effect of an action, knob by knob: ``how`` the deployment turns it (exact, approximated,
    restart_required or unsupported), the ``asked`` value, and the value in force ``now``.

    Args:
      knobs: ``/control/knobs`` after the action.
      wanted: values of the action.
    """
    return {
        name: {"how": offer["how"], "asked": wanted.get(name), "now": offer.get("now")}
        for name, offer in _offers(knobs).items()
        if name in KNOBS
    }


def unacknowledged(knobs: Mapping[str, Any], command: Mapping[str, float]) -> str | None:
    """The first knob with another value than commanded, in a sentence; None without one."""
    for name, value in command.items():
        now = knobs["knobs"][name].get("now")
        if not obeyed(name, value, now):
            return f"{name} is {now} after it was told {value:g}"
    return None


def check_objectives(spec: TaskSpec, state: Mapping[str, Any]) -> None:
    """Checks that the gateway's objectives are those of the task.

    Args:
      state: the gateway's ``/control/state``.

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
