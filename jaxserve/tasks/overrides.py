"""Changes to a task that a caller may ask for, checked like the task file itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxserve.errors import InputError
from jaxserve.tasks import checks
from jaxserve.tasks.spec import (
    MAX_HORIZON,
    MAX_RANDOMISATION,
    Regime,
    TaskSpec,
    parse_deployment,
    parse_knobs,
    parse_objective,
)

_OVERRIDES = (
    "horizon",
    "randomisation",
    "knobs",
    "deployment",
    "objective",
    "rate_scale",
    "burst_scale",
)
_WHERE = "overrides"


def override(spec: TaskSpec, overrides: Mapping[str, Any], recorded: bool) -> TaskSpec:
    """The task with some fields changed.

    Args:
      overrides: any of ``horizon`` (windows), ``randomisation`` (half-width of the log-uniform
        hardware slowness), ``knobs`` (names the agent may turn), ``deployment`` (fields of
        DeploymentSettings), ``objective`` (fields of Objective), ``rate_scale`` (multiplies every
        arrival rate) and ``burst_scale`` (multiplies the part of every burst above 1).
      recorded: whether the traffic is a recorded trace, which the last two cannot scale.

    Raises:
      InputError: an unknown name or a value out of range.
    """
    overrides = checks.mapping(overrides, _WHERE)
    checks.only(overrides, _OVERRIDES, _WHERE)
    changes: dict[str, Any] = {}
    if "horizon" in overrides:
        changes["horizon"] = checks.whole(overrides, "horizon", _WHERE, 1, MAX_HORIZON)
    if "randomisation" in overrides:
        changes["randomisation"] = checks.number(
            overrides, "randomisation", _WHERE, 0.0, MAX_RANDOMISATION
        )
    if "knobs" in overrides:
        names = overrides["knobs"]
        if not isinstance(names, list | tuple):
            raise InputError(f"{_WHERE}: knobs is {names!r}; it must be a list of knob names")
        changes["knobs"] = parse_knobs(names, _WHERE)
    for name, parse in (("deployment", parse_deployment), ("objective", parse_objective)):
        if name in overrides:
            where = f"{_WHERE}: {name}"
            fields = dataclasses.asdict(getattr(spec, name))
            changes[name] = parse(fields | dict(checks.mapping(overrides[name], where)), where)
    if "rate_scale" in overrides or "burst_scale" in overrides:
        if recorded:
            raise InputError(
                f"{_WHERE}: rate_scale and burst_scale do not act on a recorded trace; "
                "load it with a time_scale instead"
            )
        changes["regimes"] = _scaled_regimes(spec, overrides)
    return dataclasses.replace(spec, **changes)


def _scaled_regimes(spec: TaskSpec, overrides: Mapping[str, Any]) -> tuple[Regime, ...]:
    rate = checks.number(overrides, "rate_scale", _WHERE, 1e-3, 100.0, 1.0)
    burst = checks.number(overrides, "burst_scale", _WHERE, 0.0, 100.0, 1.0)

    def scaled(regime: Regime) -> Regime:
        low, high = (1.0 + (level - 1.0) * burst for level in regime.burst_multiplier)
        return dataclasses.replace(
            regime, rate_rps=regime.rate_rps * rate, burst_multiplier=(low, high)
        )

    return tuple(map(scaled, spec.regimes))
