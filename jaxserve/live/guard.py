"""Limits on the changes of knobs in one window, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, RESTART_KNOBS
from jaxserve.types import ServeAction

Values = dict[str, float]
"""Knobs by name."""
MINUTE_S = 60.0
_MOST_CHANGES = 10_000


@dataclass(frozen=True)
class Guard:
    """Largest changes in one window of mode guarded."""

    octaves: float = 1.0
    """batch cap: 1 allows twice or half as many sequences."""
    kv_step_down: float = 0.1
    """KV budget, downwards: a larger step preempts many sequences at once."""
    depth_step: int = 2
    """speculation depth."""
    replicas_down: int = 1
    """replicas fewer; more replicas can be wanted at once."""
    dwell_windows: int = 30
    """windows between two changes of tier or split."""


@dataclass(frozen=True)
class KnobLimits:
    """Values that engines allow for the offered knobs, from ``/control/knobs``."""

    ranges: Mapping[str, tuple[float, float]]
    allowed: Mapping[str, tuple[float, ...]]
    """allowed values of the knobs that have a list of them."""

    @classmethod
    def of(cls, knobs: Mapping[str, Any], turned: tuple[str, ...]) -> KnobLimits:
        """Args: the field ``knobs`` of the answer, and the knobs that a task turns."""
        offered = {name: knobs[name] for name in turned if knobs.get(name, {}).get("where")}
        return cls(
            {name: (float(k["least"]), float(k["most"])) for name, k in offered.items()},
            {
                name: tuple(map(float, k["allowed"]))
                for name, k in offered.items()
                if "allowed" in k
            },
        )

    def nearest(self, values: Mapping[str, float]) -> Values:
        """The nearest allowed values of the offered knobs."""
        found: Values = {}
        for name, (least, most) in self.ranges.items():
            value = min(max(values[name], least), most)
            if name in self.allowed:
                value = min(self.allowed[name], key=lambda each: abs(each - value))
            found[name] = ACTION_BOUNDS[name].number(value)
        return found


def values_in_force(knobs: Mapping[str, Any], locked: Mapping[str, float]) -> Values:
    """Values in force, within the ranges of the knobs; those of ``locked`` if unknown.

    A gateway's own cap may lie far above the range of batch_cap.

    Args:
      knobs: the field ``knobs`` of ``/control/knobs``.
      locked: the task's locked values.
    """
    found: Values = {}
    for name, bound in ACTION_BOUNDS.items():
        now = knobs.get(name, {}).get("now")
        value = float(locked[name] if now is None else now)
        found[name] = bound.number(min(max(value, bound.low), bound.high))
    return found


def as_values(action: ServeAction) -> Values:
    """The values of an action by knob."""
    return {name: float(getattr(action, name)) for name in KNOBS}


def guarded(
    guard: Guard,
    before: Mapping[str, float],
    wanted: Mapping[str, float],
    since_costly: int,
    allowed: Container[str] = (),
) -> Values:
    """``wanted``, limited to the largest changes from ``before`` in one window.

    Args:
      before: values in force.
      since_costly: windows since the latest change of tier or split.
      allowed: knobs with a list of allowed values, which may be farther apart than a step.
    """
    found = dict(wanted)
    factor = 2.0**guard.octaves
    cap = before["batch_cap"]
    # The step is at least one sequence; bounds are rounded into the step.
    low = math.ceil(min(cap / factor, cap - 1.0))
    high = math.floor(max(cap * factor, cap + 1.0))
    found["batch_cap"] = float(max(min(max(round(wanted["batch_cap"]), low), high), 1))
    least_kv = before["kv_budget_fraction"] - guard.kv_step_down
    found["kv_budget_fraction"] = max(wanted["kv_budget_fraction"], least_kv)
    if "speculation_depth" not in allowed:
        depth, step = before["speculation_depth"], guard.depth_step
        found["speculation_depth"] = min(
            max(wanted["speculation_depth"], depth - step), depth + step
        )
    least_replicas = before["replicas"] - guard.replicas_down
    found["replicas"] = max(wanted["replicas"], least_replicas)
    if since_costly < guard.dwell_windows:
        for name in RESTART_KNOBS:
            found[name] = before[name]
    return found


def changed_costly(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether tier or split differ."""
    return not changed(before, after).isdisjoint(RESTART_KNOBS)


def parse_most_changes(option: str, text: str, turned: Sequence[str]) -> dict[str, int]:
    """Largest numbers of changes per minute, by knob, from a text such as
    ``batch_cap=2,kv_budget_fraction=0``.

    Args:
      option: name of the text in errors.
      turned: knobs that the task turns.

    Raises:
      InputError: a knob is unknown or named twice, or a number is not whole or is out of range.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = (word.strip() for word in part.partition("="))
        checks.one_of(f"a knob of {option}", name, turned)
        if name in found:
            raise InputError(f"{option} names {name} twice; name every knob once")
        found[name] = checks.digits(f"{name} of {option}", number, 0, _MOST_CHANGES)
    return found


def windows_of_a_minute(window_s: float) -> int:
    """Number of windows that can begin in one minute."""
    return max(1, math.ceil(MINUTE_S / window_s - 1e-9))


def limited(
    most: Mapping[str, int],
    changes: Mapping[str, int],
    before: Mapping[str, float],
    wanted: Mapping[str, float],
) -> Values:
    """``wanted``, with the values of ``before`` for knobs without changes left.

    Args:
      most: most changes per minute, by knob; other knobs are not limited.
      changes: changes in the minute that ends with the next window, by knob.
    """
    used_up = {name for name, number in most.items() if changes.get(name, 0) >= number}
    return {name: before[name] if name in used_up else value for name, value in wanted.items()}


def changed(before: Mapping[str, float], after: Mapping[str, float]) -> frozenset[str]:
    """Names of the knobs with different values."""
    return frozenset(name for name in before if before[name] != after[name])
