"""Whether the policy may steer: a pure state machine over what went wrong in each window."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Mode(enum.StrEnum):
    """How much the controller may do."""

    OFF = "off"
    """nothing: the engines' static values are in force."""
    SHADOW = "shadow"
    """says what it would do, and what the simulator expects of it."""
    GUARDED = "guarded"
    """turns knobs, no farther in a window than ``Guard`` allows."""
    FREE = "free"
    """turns knobs as the policy says."""

    @property
    def steers(self) -> bool:
        """Whether it turns anything."""
        return self in (Mode.GUARDED, Mode.FREE)


@dataclass(frozen=True)
class Rules:
    """When the policy loses the wheel, and when it gets it back."""

    windows: int = 5
    """over which goodput is compared with what is expected of the static setting."""
    share: float = 0.8
    """of that expectation, below which goodput counts as too low."""
    fewest: float = 10.0
    """requests that must have been expected in them for the comparison to count."""
    recover: int = 3
    """windows without a fault after which the policy steers again; twice as many after each fall
    for goodput that follows another, until it has held for longer."""
    longest: int = 192
    """of these windows, at most."""


@dataclass(frozen=True)
class Health:
    """What is known of a window when it has ended."""

    fault: str | None = None
    """what went wrong, in one sentence; None where nothing did."""
    good: float = 0.0
    """requests that met their objectives."""
    expected: float = 0.0
    """those that the simulator expected of the static setting on the same traffic."""


@dataclass(frozen=True)
class Supervision:
    """State from window to window."""

    reason: str | None = None
    """why the static setting is in force; None while the policy steers."""
    healthy: int = 0
    """windows in a row without a fault since it fell back."""
    recover: int = 0
    """of them that are needed; 0 before the first fall."""
    recent: tuple[tuple[float, float], ...] = ()
    """good and expected requests of the windows that the policy has steered in a row."""

    @property
    def steering(self) -> bool:
        """Whether the policy may steer the next window."""
        return self.reason is None


def supervise(rules: Rules, state: Supervision, health: Health) -> Supervision:
    """The state after a window."""
    if state.reason is not None:
        return _recovering(rules, state, health)
    if health.fault is not None:
        return Supervision(health.fault, recover=max(state.recover, rules.recover))
    recent = (*state.recent, (health.good, health.expected))[-rules.windows :]
    if reason := _too_low(rules, recent):
        again = min(max(2 * state.recover, rules.recover), rules.longest)
        return Supervision(reason, recover=again)
    # Whoever has held for as long as it had to rest has shown that it can.
    rested = state.recover
    if len(recent) == rules.windows and rested > rules.recover:
        rested = max(rules.recover, rested - 1)
    return dataclasses.replace(state, recent=recent, recover=rested)


def _recovering(rules: Rules, state: Supervision, health: Health) -> Supervision:
    if health.fault is not None:
        return dataclasses.replace(state, reason=health.fault, healthy=0)
    if state.healthy + 1 >= max(state.recover, rules.recover):
        return Supervision(recover=state.recover)
    return dataclasses.replace(state, healthy=state.healthy + 1)


def _too_low(rules: Rules, recent: Sequence[tuple[float, float]]) -> str | None:
    if len(recent) < rules.windows:
        return None
    good, expected = (sum(values) for values in zip(*recent, strict=True))
    if expected < rules.fewest or good >= rules.share * expected:
        return None
    return (
        f"goodput was {good:.0f} requests in {rules.windows} windows, and {expected:.0f} are "
        "expected of the static setting"
    )
