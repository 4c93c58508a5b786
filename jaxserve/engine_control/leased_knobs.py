"""The knobs of one engine, the lease under which they are turned, and what they fall back to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .command import Command, CommandError


@dataclass(frozen=True)
class Knob:
    """A knob that this engine offers."""

    least: float
    most: float
    """what the engine was started with: no command goes beyond."""
    turn: Callable[[float | None], None]
    """puts a value into force, from the next step on; None is what the engine does by itself."""
    now: Callable[[], float | None]
    """the value in force; None where the engine chooses by itself."""


@dataclass(frozen=True)
class NotOffered:
    """A knob that this engine does not offer."""

    reason: str


class Control:
    """Turns knobs, and turns them back when nobody asks for them any longer.

    The caller sees to it that no step of the engine is being composed while a method runs.
    """

    def __init__(
        self,
        knobs: Mapping[str, Knob | NotOffered],
        static: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Puts the static values into force: those the engine was started with, or ``static``.

        Raises:
          CommandError: ``static`` names a knob that is not offered, or a value out of its range.
        """
        self._knobs = knobs
        self._clock = clock
        self._lease_end: float | None = None
        self._version = 0
        chosen = self._checked(static or {})
        self._static = {
            name: chosen.get(name, knob.now())
            for name, knob in knobs.items()
            if isinstance(knob, Knob)
        }
        self._turn(chosen)

    def check(self, command: Command) -> None:
        """Changes nothing.

        Raises:
          CommandError: ``put`` would refuse it, now or later.
        """
        self._checked(command.knobs)

    def put(self, command: Command) -> None:
        """Turns the knobs that ``command`` names, all or none, and starts the lease anew.

        Raises:
          CommandError: a knob is not offered, or a value is out of its range.
        """
        checked = self._checked(command.knobs)
        self.expire()
        self._lease_end = self._clock() + command.lease_s
        self._version += 1
        self._turn(checked)

    def release(self) -> None:
        """Ends the lease: the static values are in force."""
        if self._lease_end is not None:
            self._lease_end = None
            self._version += 1
            self._turn(self._static)

    def expire(self) -> bool:
        """Ends the lease if its time is over; to be called before every step. True if it was."""
        over = self._lease_end is not None and self._clock() >= self._lease_end
        if over:
            self.release()
        return over

    def state(self) -> dict[str, Any]:
        """What is in force: mode, seconds left of the lease, and every knob; JSON-able."""
        self.expire()
        end = self._lease_end
        return {
            "mode": "static" if end is None else "leased",
            "lease_left_s": 0.0 if end is None else end - self._clock(),
            "version": self._version,
            "knobs": {name: self._shown(name, knob) for name, knob in self._knobs.items()},
        }

    def _shown(self, name: str, knob: Knob | NotOffered) -> dict[str, Any]:
        if isinstance(knob, NotOffered):
            return {"offered": False, "reason": knob.reason}
        return {
            "offered": True,
            "now": knob.now(),
            "static": self._static[name],
            "least": knob.least,
            "most": knob.most,
        }

    def _turn(self, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            knob = self._knobs[name]
            assert isinstance(knob, Knob)
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
