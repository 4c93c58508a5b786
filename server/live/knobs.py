"""Knobs on a real engine: through its plug-in where it has one; else the client caps itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.gateway.knobs.values import obeyed
from jaxserve.live.engine_client import EngineClient
from jaxserve.spaces import ACTION_BOUNDS

_NO_PLUG_IN = "the engine has no plug-in jaxserve-vllm"


class Gate:
    """At most so many requests at a time, in the order in which they came."""

    def __init__(self) -> None:
        self.most: int | None = None
        """None: as many as there are."""
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Returns when there is a place, which ``leave`` gives back."""
        if not self._waiting and self._has_place():
            self._inside += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """One is done."""
        self._inside -= 1
        self._admit()

    def resize(self, most: int | None) -> None:
        """From now on; those inside stay."""
        self.most = most
        self._admit()

    def _has_place(self) -> bool:
        return self.most is None or self._inside < self.most

    def _admit(self) -> None:
        while self._waiting and self._has_place():
            place = self._waiting.popleft()
            if not place.done():
                self._inside += 1
                place.set_result(None)


async def offers(engine: EngineClient, name: str) -> bool:
    """Whether an engine's plug-in turns a knob.

    Raises:
      InputError: the plug-in refuses, or answers something else.
    """
    known = _offers(await engine.plug_in("control"))
    return name in known and known.inside(name).flag("offered")


def _offers(state: Mapping[str, Any] | None) -> JsonObject:
    """What the plug-in says of each knob; nothing where there is none."""
    return JsonObject(state or {"knobs": {}}, "the plug-in").inside("knobs")


async def turn(
    engine: EngineClient | None,
    gate: Gate,
    active: Sequence[str],
    wanted: Mapping[str, float],
    lease_s: float,
) -> dict[str, dict[str, Any]]:
    """Turns what the engine offers; says knob by knob ``how`` it was turned (exact, approximated or
    unsupported), what was ``asked``, what is in force ``now`` (None: the engine does not say), and
    where it is not exact the ``reason``.

    Args:
      engine: None for one that is known to have no plug-in.
      active: knobs that the task turns.
      wanted: all knobs.
      lease_s: after which the engine's static values come back.

    Raises:
      InputError: the plug-in refuses, or answers something else.
    """
    known = _offers(None if engine is None else await engine.plug_in("control"))
    told, reasons = {}, dict.fromkeys(active, _NO_PLUG_IN)
    for name in active:
        if name in known:
            offer = known.inside(name)
            if offer.flag("offered"):
                low, high = offer.number("least"), offer.number("most")
                told[name] = ACTION_BOUNDS[name].number(min(max(wanted[name], low), high))
                reasons[name] = f"the engine allows {low:g} to {high:g}"
            else:
                reasons[name] = offer.text("reason")[:200]
    has_cap = "batch_cap" in known and known.inside("batch_cap").flag("offered")
    gate.resize(None if has_cap else int(wanted["batch_cap"]))
    now: Mapping[str, Any] = {}
    if told and engine is not None:
        answer = JsonObject(await engine.turn(told, lease_s) or {}, "the plug-in")
        now = {name: answer.inside("knobs").inside(name).number("now") for name in told}
    found = {}
    for name in active:
        asked = ACTION_BOUNDS[name].number(wanted[name])
        entry = {"how": "unsupported", "asked": asked, "now": now.get(name)}
        if name in now:
            entry["now"] = ACTION_BOUNDS[name].number(now[name])
            entry["how"] = "exact" if obeyed(name, asked, now[name]) else "approximated"
        elif name == "batch_cap":
            entry |= {"how": "approximated", "now": asked}
            reasons[name] = "a cap on the requests that the server has in flight"
        if entry["how"] != "exact":
            entry["reason"] = reasons[name]
        found[name] = entry
    return found
