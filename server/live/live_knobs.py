"""Knobs of a real engine: set by its plug-in; without one, batch_cap caps the server's requests."""

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


class ConcurrencyCap:
    """Admits a number of requests at once, in order of arrival."""

    def __init__(self) -> None:
        self.most: int | None = None
        """requests at once; None: unlimited."""
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Returns when the request is admitted; ``leave`` frees its place."""
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
        """Frees the place of a request."""
        self._inside -= 1
        self._admit()

    def resize(self, most: int | None) -> None:
        """Changes the cap; admitted requests stay."""
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
    """Whether an engine's plug-in sets a knob.

    Raises:
      InputError: the plug-in refuses, or its answer is invalid.
    """
    known = _offers(await engine.plug_in("control"))
    return name in known and known.inside(name).flag("offered")


def _offers(state: Mapping[str, Any] | None) -> JsonObject:
    """The plug-in's entry of each knob; empty without a plug-in."""
    return JsonObject(state or {"knobs": {}}, "the plug-in").inside("knobs")


async def turn(
    engine: EngineClient | None,
    gate: ConcurrencyCap,
    active: Sequence[str],
    wanted: Mapping[str, float],
    lease_s: float,
) -> dict[str, dict[str, Any]]:
    """Sets the knobs that the engine offers.

    Args:
      engine: None for an engine without a plug-in.
      active: active knobs of the task.
      wanted: values of all knobs.
      lease_s: seconds after which the engine returns to its static values.

    Returns:
      For each active knob ``how`` it was set (exact, approximated or unsupported), the value
      ``asked``, the value in force ``now`` (None if unknown), and a ``reason`` unless exact.

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
