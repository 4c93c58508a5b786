"""Changes to a task that a caller may ask for, checked like the task file itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxserve.errors import InputError
from jaxserve.sim.deployment import DeploymentSettings
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import Objective, TaskSpec

_OVERRIDES = (
    "horizon",
    "randomisation",
    "knobs",
    "deployment",
    "objective",
    "rate_scale",
    "burst_scale",
)


def override(spec: TaskSpec, overrides: Mapping[str, Any]) -> TaskSpec:
    """The task with some fields changed.

    Args:
      overrides: any of ``horizon`` (windows), ``randomisation`` (half-width of the log-uniform
        hardware slowness), ``knobs`` (names the agent may turn), ``deployment`` (fields of
        DeploymentSettings), ``objective`` (fields of Objective), ``rate_scale`` (multiplies every
        arrival rate) and ``burst_scale`` (multiplies the part of every burst above 1).

    Raises:
      InputError: an unknown name or a value out of range.
    """
    for name in overrides:
        if name not in _OVERRIDES:
            raise InputError(
                f"override {name!r} is unknown; allowed are {', '.join(_OVERRIDES)}"
            )
    changes: dict[str, Any] = {}
    if "horizon" in overrides:
        changes["horizon"] = int(_in_range(overrides, "horizon", 1, 100_000))
    if "randomisation" in overrides:
        changes["randomisation"] = _in_range(overrides, "randomisation", 0.0, 0.5)
    if "knobs" in overrides:
        unknown = sorted(set(overrides["knobs"]) - set(KNOBS))
        if unknown:
            raise InputError(
                f"override knobs: {unknown[0]!r} is unknown; allowed are {', '.join(KNOBS)}"
            )
        changes["knobs"] = tuple(overrides["knobs"])
    for name, kind in (("deployment", DeploymentSettings), ("objective", Objective)):
        if name in overrides:
            known = {f.name for f in dataclasses.fields(kind)}
            for key in overrides[name]:
                if key not in known:
                    raise InputError(
                        f"override {name}: field {key!r} is unknown; "
                        f"allowed are {', '.join(sorted(known))}"
                    )
                _in_range(overrides[name], key, 0.0, 1e6)
            changes[name] = dataclasses.replace(getattr(spec, name), **overrides[name])
    rate = _in_range(overrides, "rate_scale", 0.0, 100.0) if "rate_scale" in overrides else 1.0
    burst = _in_range(overrides, "burst_scale", 0.0, 100.0) if "burst_scale" in overrides else 1.0
    if rate != 1.0 or burst != 1.0:
        changes["regimes"] = tuple(
            dataclasses.replace(
                regime,
                rate_rps=regime.rate_rps * rate,
                burst_multiplier=tuple(
                    1.0 + (level - 1.0) * burst for level in regime.burst_multiplier
                ),
            )
            for regime in spec.regimes
        )
    return dataclasses.replace(spec, **changes)


def _in_range(values: Mapping[str, Any], key: str, low: float, high: float) -> float:
    value = values[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise InputError(f"{key} is {value!r}; it must be a number from {low:g} to {high:g}")
    return value
