"""What knobs there are, which values they take, and when one has been obeyed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxserve import checks
from jaxserve.errors import InputError

ENGINE_KNOBS = (
    "batch_cap",
    "token_budget",
    "kv_budget_fraction",
    "speculation_depth",
    "priority_routing",
    "quantization_tier",
    "prefill_decode_split",
)
"""In the order of the plug-in for vLLM."""
MAX_LEASE_S = 3600.0
_SHARE = "kv_budget_fraction"
"""The others are whole numbers."""


def check_values(values: Mapping[str, float], knobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Checks a command.

    Args:
      values: by knob.
      knobs: what is offered of each, as controllers are told.

    Raises:
      InputError: a knob is unknown or not offered, or a value is not one that it may have.
    """
    for name, value in values.items():
        knob = knobs.get(name)
        if knob is None:
            raise InputError(
                f"knob {name!r:.60} is unknown; the knobs are {', '.join(ENGINE_KNOBS)}"
            )
        if knob["where"] is None:
            raise InputError(f"{name} cannot be turned here: {knob['reason']}")
        # Values come as floats, also of knobs that are whole numbers.
        given = int(value) if float(value).is_integer() else value
        check = checks.number if name == _SHARE else checks.whole
        check(name, given, knob["least"], knob["most"])
        if "allowed" in knob and value not in knob["allowed"]:
            allowed = ", ".join(f"{each:g}" for each in knob["allowed"])
            checks.refuse(name, given, f"one of {allowed}")


def obeyed(name: str, told: float, now: float | None) -> bool:
    """Whether ``now`` is what a knob was told."""
    if now is None:
        return False
    # A share of the KV blocks is rounded to whole blocks.
    return math.isclose(now, told, rel_tol=1e-6, abs_tol=0.01 if name == _SHARE else 0.0)
