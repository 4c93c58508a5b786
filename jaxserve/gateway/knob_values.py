"""What knobs there are, which values they take, and when one has been obeyed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxserve.errors import InputError

KNOBS = (
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
            raise InputError(f"knob {name!r:.60} is unknown; the knobs are {', '.join(KNOBS)}")
        if knob["where"] is None:
            raise InputError(f"{name} cannot be turned here: {knob['reason']}")
        if not knob["least"] <= value <= knob["most"]:
            raise InputError(
                f"{name} is {value:g}; it must be from {knob['least']:g} to {knob['most']:g}"
            )
        if name != _SHARE and value != round(value):
            raise InputError(f"{name} is {value:g}; it must be a whole number")
        if "allowed" in knob and value not in knob["allowed"]:
            allowed = ", ".join(f"{each:g}" for each in knob["allowed"])
            raise InputError(f"{name} is {value:g}; it must be one of {allowed}")


def obeyed(name: str, told: float, now: float | None) -> bool:
    """Whether ``now`` is what a knob was told."""
    if now is None:
        return False
    # A share of the KV blocks is rounded to whole blocks.
    return math.isclose(now, told, rel_tol=1e-6, abs_tol=0.01 if name == _SHARE else 0.0)
