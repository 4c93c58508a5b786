"""The knobs of one engine, turned under a lease and set back to static values at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .command import Command, CommandError


@dataclass(frozen=True)
class OfferedKnob:
    """A knob that the engine can turn while it serves."""

    least: float
    most: float
    """start-up value of the engine: no command exceeds it."""
    turn: Callable[[float | None], None]
    """sets the value from the next step on; None restores the engine's own choice."""
    now: Callable[[], float | None]
    """returns the value in force; None if the engine itself chooses."""


@dataclass(frozen=True)
class NotOffered:
    """A knob that the engine cannot turn while it serves."""

    reason: str


class LeasedKnobs:
    """Turns knobs, and sets them back when commands stop.

    Callers must not let the engine compose a step while a method runs.
    """

    def __init__(
        self,
        knobs: Mapping[str, OfferedKnob | NotOffered],
        static: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sets the static values.

        Args:
          knobs: every knob by name.
          static: values without a lease, by knob; other knobs keep their start-up values.
          clock: monotonic time, s.

        Raises:
          CommandError: ``static`` names a knob that is not offered, or a value out of its range.
        """
        self._knobs = knobs
        self._clock = clock
        self._lease_end_s: float | None = None
        self.version = 0
        """counts accepted commands and ended leases."""
        self._turn(self._checked(static or {}))
        self._static = self._now()

    @property
    def values(self) -> Mapping[str, Any]:
        """Values in force by knob, without the knobs that are not offered; None as ``now``."""
        self.expire()
        return self._now()

    def check(self, command: Command) -> None:
        """Checks a command and changes nothing.

        Raises:
          CommandError: ``put`` would refuse the command, now or later.
        """
        self._checked(command.knobs)

    def put(self, command: Command) -> None:
        """Turns all knobs that ``command`` names, or none, and starts the lease anew.

        Raises:
          CommandError: a knob is not offered, or a value is out of its range.
        """
        checked = self._checked(command.knobs)
        self.expire()
        self._lease_end_s = self._clock() + command.lease_s
        self.version += 1
        self._turn(checked)

    def release(self) -> None:
        """Ends the lease, if there is one: the static values return."""
        if self._lease_end_s is not None:
            self._lease_end_s = None
            self.version += 1
            self._turn(self._static)

    def expire(self) -> bool:
        """Ends the lease if its time is over, and says whether it did; call it before each step."""
        over = self._lease_end_s is not None and self._clock() >= self._lease_end_s
        if over:
            self.release()
        return over

    def state(self) -> dict[str, Any]:
        """Mode, remaining seconds of the lease, version and every knob, as JSON."""
        self.expire()
        end_s = self._lease_end_s
        return {
            "mode": "static" if end_s is None else "leased",
            "lease_left_s": 0.0 if end_s is None else end_s - self._clock(),
            "version": self.version,
            "knobs": {name: self._shown(name, knob) for name, knob in self._knobs.items()},
        }

    def _shown(self, name: str, knob: OfferedKnob | NotOffered) -> dict[str, Any]:
        if isinstance(knob, NotOffered):
            return {"offered": False, "reason": knob.reason}
        return {
            "offered": True,
            "now": knob.now(),
            "static": self._static[name],
            "least": knob.least,
            "most": knob.most,
        }

    def _now(self) -> dict[str, float | None]:
        offered = {name: k for name, k in self._knobs.items() if isinstance(k, OfferedKnob)}
        return {name: knob.now() for name, knob in offered.items()}

    def _turn(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            knob = self._knobs[name]
            assert isinstance(knob, OfferedKnob)
            knob.turn(value)

    def _checked(self, values: Mapping[str, float]) -> Mapping[str, float]:
        for name, value in values.items():
            knob = self._knobs[name]
            if isinstance(knob, NotOffered):
                raise CommandError(f"{name} cannot be turned: {knob.reason}")
            if not knob.least <= value <= knob.most:
                raise CommandError(
                    f"{name} is {value:g}; this engine allows {knob.least:g} to {knob.most:g}"
                )
        return values
