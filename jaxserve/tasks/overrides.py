"""Changes to a task that a caller may ask for, checked like the task file itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxserve.checks import JsonObject, refuse
from jaxserve.errors import InputError
from jaxserve.tasks.spec import (
    MAX_HORIZON,
    MAX_RANDOMISATION,
    Regime,
    TaskSpec,
    parse_deployment,
    parse_objective,
    parse_open_knobs,
    parse_output_ages,
)

_OVERRIDES = (
    "horizon",
    "randomisation",
    "knobs",
    "deployment",
    "objective",
    "output_ages",
    "rate_scale",
    "burst_scale",
)


def override(spec: TaskSpec, overrides: Mapping[str, Any], recorded: bool) -> TaskSpec:
    """The task with some fields changed.

    Args:
      overrides: any of ``horizon`` (windows), ``randomisation`` (half-width of the log-uniform
        hardware slowness), ``knobs`` (names the agent may turn), ``deployment`` (fields of
        DeploymentSettings), ``objective`` (fields of Objective), ``output_ages`` (see TaskSpec),
        ``rate_scale`` and ``burst_scale``. ``rate_scale`` multiplies every arrival rate, and
        ``burst_scale`` the part of every burst above 1.
      recorded: whether the traffic is a recorded trace, which the last two cannot scale.

    Raises:
      InputError: an unknown name or a value out of range.
    """
    given = JsonObject(overrides, "overrides", _OVERRIDES)
    changes: dict[str, Any] = {}
    if "horizon" in given:
        changes["horizon"] = given.whole("horizon", 1, MAX_HORIZON)
    if "randomisation" in given:
        changes["randomisation"] = given.number("randomisation", 0, MAX_RANDOMISATION)
    if "output_ages" in given:
        changes["output_ages"] = parse_output_ages(given)
    if "knobs" in given:
        names = given["knobs"]
        if not isinstance(names, list | tuple):
            refuse(given.name("knobs"), names, "a list of knob names")
        changes["knobs"] = parse_open_knobs(names, given.where)
    for name, parse in (("deployment", parse_deployment), ("objective", parse_objective)):
        if name in given:
            own = vars(getattr(spec, name)).items()
            fields = {key: value for key, value in own if value is not None}
            changes[name] = parse(fields | given.inside(name), given.name(name))
    if "rate_scale" in given or "burst_scale" in given:
        if recorded:
            raise InputError(
                f"{given.where}: rate_scale and burst_scale do not act on a recorded trace; "
                "load it with a time_scale instead"
            )
        changes["regimes"] = _scaled_regimes(spec, given)
    return dataclasses.replace(spec, **changes)


def _scaled_regimes(spec: TaskSpec, given: JsonObject) -> tuple[Regime, ...]:
    rate = given.number("rate_scale", 1e-3, 100, 1.0)
    burst = given.number("burst_scale", 0, 100, 1.0)

    def scaled(regime: Regime) -> Regime:
        low, high = (1.0 + (level - 1.0) * burst for level in regime.burst_multiplier)
        return dataclasses.replace(
            regime, rate_rps=regime.rate_rps * rate, burst_multiplier=(low, high)
        )

    return tuple(map(scaled, spec.regimes))
