"""Names and values of knobs, and the check whether a command was obeyed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxserve import checks
from jaxserve.engine_control.command import ENGINE_KNOBS
from jaxserve.errors import InputError

_FRACTION = "kv_budget_fraction"
"""Only knob that is not a whole number."""


def check_values(values: Mapping[str, float], knobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks the values of a command.

    Args:
      values: values by knob.
      knobs: state of each knob, as controllers see it.

    Raises:
      InputError: a knob is unknown or not offered, or a value is out of its range.
    """
    for name, value in values.items():
        knob = knobs.get(name)
        if knob is None:
            raise InputError(
                f"knob {name!r:.60} is unknown; the knobs are {', '.join(ENGINE_KNOBS)}"
            )
        if knob["where"] is None:
            raise InputError(f"{name} cannot be turned here: {knob['reason']}")
        # Values arrive as floats, whole numbers included.
        given = int(value) if float(value).is_integer() else value
        check = checks.number if name == _FRACTION else checks.whole
        check(name, given, knob["least"], knob["most"])
        if "allowed" in knob and value not in knob["allowed"]:
            allowed = ", ".join(f"{each:g}" for each in knob["allowed"])
            checks.refuse(name, given, f"one of {allowed}")


def obeyed(name: str, commanded: float, now: float | None) -> bool:
    """Whether the value ``now`` of a knob is the commanded one."""
    if now is None:
        return False
    # The fraction of the KV blocks is rounded to whole blocks.
    return math.isclose(now, commanded, rel_tol=1e-6, abs_tol=0.01 if name == _FRACTION else 0.0)
