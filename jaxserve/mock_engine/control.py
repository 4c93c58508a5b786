"""Knobs under a lease: what the next step of the engine is to obey."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.errors import InputError
from jaxserve.mock_engine.command import Command
from jaxserve.mock_engine.machine import Machine


@dataclass(frozen=True)
class Bounds:
    """A knob that the engine offers."""

    least: float
    most: float
    """what the engine was started with."""


@dataclass(frozen=True)
class NotOffered:
    """A knob that it does not offer."""

    reason: str


def offered_knobs(machine: Machine) -> dict[str, Bounds | NotOffered]:
    """Every knob, as an engine on ``machine`` offers it."""
    settings = machine.settings
    depth: Bounds | NotOffered = Bounds(0, settings.speculation_depth)
    if settings.speculation_depth == 0:
        depth = NotOffered("the engine was started without --speculation-depth")
    routing: Bounds | NotOffered = Bounds(0, 1)
    if settings.scheduling_policy != "priority":
        routing = NotOffered("the engine was started without --scheduling-policy priority")
    return {
        "batch_cap": Bounds(1, settings.batch_cap),
        "token_budget": Bounds(1 + settings.speculation_depth, settings.token_budget),
        "kv_budget_fraction": Bounds(machine.longest_blocks / machine.kv_blocks, 1.0),
        "speculation_depth": depth,
        "priority_routing": routing,
        "quantization_tier": NotOffered("vLLM holds one set of weights; it has to be restarted"),
        "prefill_decode_split": NotOffered("vLLM's roles are fixed when it starts"),
    }


class Control:
    """The values in force. The static ones come back when a lease is over."""

    def __init__(
        self,
        machine: Machine,
        static: Mapping[str, float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        machine: what bounds the knobs; an engine starts with the most of each.
        static: values in force without a lease, where they are not these.
        clock: seconds of the host.

        Raises:
          InputError: ``static`` names a knob that is not offered, or a value out of its range.
        """
        self._knobs = offered_knobs(machine)
        self._kv_blocks = machine.kv_blocks
        self._clock = clock
        bounds = {name: one for name, one in self._knobs.items() if isinstance(one, Bounds)}
        self._static = {name: one.most for name, one in bounds.items()} | self._checked(static)
        self._values = dict(self._static)
        self._lease_end_s: float | None = None
        self.version = 0
        """changes with every command and every lease that ends."""

    @property
    def values(self) -> Mapping[str, float]:
        """In force from the next step on, by knob; those that are not offered are left out."""
        self._expire()
        return self._values

    @property
    def kv_blocks(self) -> int:
        """KV blocks that may be in use."""
        return round(self.values["kv_budget_fraction"] * self._kv_blocks)

    def put(self, command: Command) -> None:
        """Turns the knobs that ``command`` names, all or none, and starts the lease anew.

        Raises:
          InputError: a knob is not offered, or a value is out of its range.
        """
        checked = self._checked(command.knobs)
        self._expire()
        self._lease_end_s = self._clock() + command.lease_s
        self._values.update(checked)
        self.version += 1

    def release(self) -> None:
        """Ends the lease."""
        if self._lease_end_s is not None:
            self._lease_end_s = None
            self._values = dict(self._static)
            self.version += 1

    def state(self) -> dict[str, Any]:
        """Mode, seconds left of the lease, and every knob."""
        self._expire()
        end_s = self._lease_end_s
        return {
            "mode": "static" if end_s is None else "leased",
            "lease_left_s": 0.0 if end_s is None else end_s - self._clock(),
            "version": self.version,
            "knobs": {name: self._shown(name, one) for name, one in self._knobs.items()},
        }

    def _expire(self) -> None:
        if self._lease_end_s is not None and self._clock() >= self._lease_end_s:
            self.release()

    def _shown(self, name: str, knob: Bounds | NotOffered) -> dict[str, Any]:
        if isinstance(knob, NotOffered):
            return {"offered": False, "reason": knob.reason}
        return {
            "offered": True,
            "now": self._values[name],
            "static": self._static[name],
            "least": knob.least,
            "most": knob.most,
        }

    def _checked(self, values: Mapping[str, float]) -> dict[str, float]:
        checked = {}
        for name, value in values.items():
            knob = self._knobs[name]
            if isinstance(knob, NotOffered):
                raise InputError(f"{name} cannot be turned: {knob.reason}")
            if not knob.least <= value <= knob.most:
                raise InputError(
                    f"{name} is {value:g}; this engine allows {knob.least:g} to {knob.most:g}"
                )
            if name == "kv_budget_fraction":  # whole blocks
                value = max(knob.least, round(value * self._kv_blocks) / self._kv_blocks)
            checked[name] = value
        return checked
