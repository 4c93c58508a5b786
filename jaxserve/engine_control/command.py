"""Commands to turn knobs: parsed, and checked as far as an engine is not needed for it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

ENGINE_KNOBS = (
    "batch_cap",
    "token_budget",
    "kv_budget_fraction",
    "speculation_depth",
    "priority_routing",
    "quantization_tier",
    "prefill_decode_split",
)
MAX_LEASE_S = 3600.0


class CommandError(ValueError):
    """A refused command; ``str()`` is the reason in one sentence."""


@dataclass(frozen=True)
class Command:
    """Knobs to turn, and the lease under which they hold."""

    lease_s: float
    """seconds until the static values return, unless a further command renews the lease."""
    knobs: dict[str, float]
    """new values by knob; other knobs keep theirs, so an empty mapping only renews the lease."""


def parse_command(text: bytes) -> Command:
    """A command from the JSON object ``{"lease_s": seconds, "knobs": {knob: value}}``.

    Raises:
      CommandError: the text is no such object, a field is unknown or repeated, the lease is not
        above 0 and at most ``MAX_LEASE_S`` seconds, or a value is no finite number or not whole
        although its knob is.
    """
    body = _object(text)
    unknown = sorted(set(body) - {"lease_s", "knobs"})
    if unknown:
        raise CommandError(f"field {unknown[0]!r} is unknown; the fields are lease_s and knobs")
    if "lease_s" not in body:
        raise CommandError("lease_s is missing; it says for how many seconds the knobs hold")
    lease_s = body["lease_s"]
    if not _is_number(lease_s) or not 0 < lease_s <= MAX_LEASE_S:
        raise CommandError(
            f"lease_s is {lease_s!r:.60}; it must be a number of seconds above 0, "
            f"{MAX_LEASE_S:g} at most"
        )
    return Command(float(lease_s), check_knobs(body.get("knobs", {})))


def parse_knobs(text: bytes) -> dict[str, float]:
    """Values by knob from a JSON object.

    Raises:
      CommandError: as ``parse_command``.
    """
    return check_knobs(_object(text))


def check_knobs(values: Any) -> dict[str, float]:
    """Returns ``values`` if it maps known knobs to numbers of their kind; the engine checks ranges.

    Raises:
      CommandError: as ``parse_command``.
    """
    if not isinstance(values, dict):
        raise CommandError(
            f"knobs is {values!r:.60}; it must be an object of values by knob, out of "
            f"{', '.join(ENGINE_KNOBS)}"
        )
    return {knob: _number(knob, value) for knob, value in values.items()}


def _object(text: bytes) -> dict[str, Any]:
    try:
        body = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except CommandError:
        raise
    except (ValueError, RecursionError):  # includes UnicodeDecodeError
        raise CommandError("the command is not JSON") from None
    if not isinstance(body, dict):
        raise CommandError(f"the command is {body!r:.60}; it must be a JSON object")
    return body


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise CommandError("a field of the command is given twice")
    return values


def _no_constant(name: str) -> float:
    raise CommandError(f"the command has the value {name}; numbers must be finite")


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def _number(knob: str, value: Any) -> float:
    if knob not in ENGINE_KNOBS:
        raise CommandError(f"knob {knob!r:.60} is unknown; the knobs are {', '.join(ENGINE_KNOBS)}")
    if knob == "priority_routing" and isinstance(value, bool):
        return int(value)
    if not _is_number(value):
        raise CommandError(f"{knob} is {value!r:.60}; it must be a number")
    if knob == "kv_budget_fraction":
        return float(value)
    if value != int(value):
        raise CommandError(f"{knob} is {value!r:.60}; it must be a whole number")
    return int(value)
