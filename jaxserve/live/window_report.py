"""What the operator is told of a window when it is over."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxserve.live.twins import Expectation


@dataclass(frozen=True)
class WindowComparison:
    """A window as it was measured, beside what the simulator expected of it."""

    seen: Expectation
    """what was measured, in the terms of the expectations."""
    in_force: Expectation
    """what the simulator expected under the knobs that were in force."""
    policy: Expectation
    """under those of the policy, on the same traffic from the start."""
    static: Expectation
    """under the best static ones, likewise."""


@dataclass(frozen=True)
class Report:
    """What the operator is told of a window."""

    window: int
    mode: str
    reason: str | None
    """why the static setting is in force, None where it is not."""
    comparison: WindowComparison | None = None
    """None where nothing could be measured."""
    told: dict[str, float] = field(default_factory=dict)
    """knobs that were turned, or would be."""
    changes: dict[str, int] = field(default_factory=dict)
    """changes in the last minute of the knobs whose changes are limited."""
