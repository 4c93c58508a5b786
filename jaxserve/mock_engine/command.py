"""Commands of the control endpoint; ``integrations/vllm/README.md`` describes them.

The plug-in for vLLM answers alike; ``tests/mock_engine/test_contract.py`` holds the two together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.knobs.values import ENGINE_KNOBS, MAX_LEASE_S


@dataclass(frozen=True)
class Command:
    """Knobs to turn, and for how long."""

    lease_s: float
    """seconds of the host, after which the static values come back."""
    knobs: Mapping[str, float]
    """new values by knob; none only renews the lease."""


def read_command(text: bytes) -> Command:
    """A command from ``{"lease_s": seconds, "knobs": {knob: value}}``.

    Raises:
      InputError: no such object, an unknown or repeated field, a lease out of its range, or a value
        that its knob can never have. What an engine allows is for its ``Control`` to check.
    """
    fields = _read_object(text)
    for name in sorted(fields):
        if name not in ("lease_s", "knobs"):
            raise InputError(f"field {name!r} is unknown; the fields are lease_s and knobs")
    if "lease_s" not in fields:
        raise InputError("lease_s is missing; it says for how many seconds the knobs hold")
    lease_s = fields["lease_s"]
    if not checks.is_finite(lease_s) or not 0 < lease_s <= MAX_LEASE_S:
        raise InputError(
            f"lease_s is {lease_s!r:.60}; it must be a number of seconds above 0, "
            f"{MAX_LEASE_S:g} at most"
        )
    return Command(float(lease_s), _read_knobs(fields.get("knobs", {})))


def read_static(text: str) -> Mapping[str, float]:
    """Values by knob from the JSON object in ``JAXSERVE_STATIC``.

    Raises:
      InputError: as ``read_command``.
    """
    return _read_knobs(_read_object(text.encode()))


def _read_object(text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            raise InputError("a field of the command is given twice")
        return fields

    def refuse(constant: str) -> NoReturn:
        raise InputError(f"the command has the value {constant}; numbers must be finite")

    try:
        fields = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except InputError:
        raise
    except (ValueError, RecursionError):
        raise InputError("the command is not JSON") from None
    if not isinstance(fields, dict):
        raise InputError(f"the command is {fields!r:.60}; it must be a JSON object")
    return fields


def _read_knobs(values: Any) -> dict[str, float]:
    if not isinstance(values, dict):
        raise InputError(
            f"knobs is {values!r:.60}; it must be an object of values by knob, out of "
            f"{', '.join(ENGINE_KNOBS)}"
        )
    return {name: _read_value(name, value) for name, value in values.items()}


def _read_value(name: str, value: Any) -> float:
    if name not in ENGINE_KNOBS:
        raise InputError(f"knob {name!r:.60} is unknown; the knobs are {', '.join(ENGINE_KNOBS)}")
    if name == "priority_routing" and isinstance(value, bool):
        return int(value)
    if not checks.is_finite(value):
        raise InputError(f"{name} is {value!r:.60}; it must be a number")
    if name == "kv_budget_fraction":
        return float(value)
    if value != int(value):
        raise InputError(f"{name} is {value!r:.60}; it must be a whole number")
    return int(value)
