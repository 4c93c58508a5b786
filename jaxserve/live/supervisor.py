"""Decides whether the policy may steer: a pure state machine over the faults of windows."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from dataclasses import dataclass


class Mode(enum.StrEnum):
    """Modes of the controller."""

    OFF = "off"
    """measures only: the engines' static values are in force."""
    SHADOW = "shadow"
    """reports its commands and the simulator's expectations, and turns nothing."""
    GUARDED = "guarded"
    """turns knobs, within the limits of ``Guard``."""
    FREE = "free"
    """turns knobs to the policy's values."""

    @property
    def steers(self) -> bool:
        """Whether the mode turns knobs."""
        return self in (Mode.GUARDED, Mode.FREE)


class InControl(enum.StrEnum):
    """Sources of the values in force."""

    POLICY = "policy"
    """the controlling policy."""
    BEST_STATIC = "best_static"
    """the best static setting, after a fault."""
    ENGINES = "engines"
    """the engines' own static values: the mode turns nothing, control is switched off, or the
    lease has ended."""


@dataclass(frozen=True)
class Rules:
    """Rules by which the policy loses control and regains it."""

    windows: int = 5
    """windows over which goodput is compared with the expectation of the static setting."""
    share: float = 0.8
    """share of that expectation below which goodput is too low."""
    fewest: float = 10.0
    """expected requests below which goodput is not compared."""
    recover: int = 3
    """windows without a fault before the policy steers again; doubled by each further fall for
    goodput, and reduced again by windows without one."""
    longest: int = 192
    """most windows before the policy steers again."""


@dataclass(frozen=True)
class Health:
    """Result of a window."""

    fault: str | None = None
    """fault, in one sentence; None without a fault."""
    good: float = 0.0
    """requests inside their objectives."""
    expected: float = 0.0
    """the simulator's expectation of ``good`` under the static setting on the same traffic, if all
    requests could be judged."""
    ended: int = 0
    """requests that ended."""
    unjudged: int = 0
    """requests among them of which nobody knows whether they met their objectives."""


@dataclass(frozen=True)
class Supervision:
    """State from window to window."""

    reason: str | None = None
    """fault that put the static setting into force; None while the policy steers."""
    healthy: int = 0
    """consecutive windows without a fault since the fall."""
    recover: int = 0
    """such windows before the policy steers again; 0 before the first fall."""
    recent: tuple[Health, ...] = ()
    """results of the latest windows that the policy steered."""

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
    recent = (*state.recent, health)[-rules.windows :]
    if reason := _too_low(rules, recent):
        again = min(max(2 * state.recover, rules.recover), rules.longest)
        return Supervision(reason, recover=again)
    # A policy that held for a full comparison regains one window of its rest.
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


def _too_low(rules: Rules, recent: Sequence[Health]) -> str | None:
    if len(recent) < rules.windows:
        return None
    good = sum(each.good for each in recent)
    unjudged = sum(each.unjudged for each in recent) / max(sum(each.ended for each in recent), 1)
    expected = (1.0 - unjudged) * sum(each.expected for each in recent)
    if expected < rules.fewest or good >= rules.share * expected:
        return None
    return (
        f"goodput was {good:.0f} requests in {rules.windows} windows, and {expected:.0f} are "
        "expected of the static setting" + (f"; {unjudged:.0%} not judged" if unjudged else "")
    )
