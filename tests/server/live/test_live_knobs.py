"""Knobs on an engine with the plug-in, on one without, and the client's own cap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.spaces import KNOBS
from server.live.live_knobs import ConcurrencyCap, offers, turn
from tests.mock_engine.conftest import running

WANTED = dict(zip(KNOBS, (5, 0.8, 3, 1, 0, 0, 0), strict=True))


def test_an_engine_with_the_plug_in() -> None:
    """Turned under a lease: as asked, as far as it can be, or not at all and why."""

    async def ask(url: str) -> Any:
        async with EngineClient(Target(url)) as engine:
            gate = ConcurrencyCap()
            active = ("batch_cap", "kv_budget_fraction", "speculation_depth")
            echo = await turn(engine, gate, active, WANTED, 60.0)
            state = await engine.plug_in("control")
            far = await turn(engine, gate, ("batch_cap",), WANTED | {"batch_cap": 500}, 60.0)
            await engine.release()
            return echo, state, far, await engine.plug_in("control"), gate.most

    with running() as mock:
        echo, state, far, after, most = asyncio.run(ask(mock.url))
    assert (echo["batch_cap"]["how"], echo["batch_cap"]["now"]) == ("exact", 5)
    assert echo["kv_budget_fraction"]["how"] == "exact"
    assert echo["speculation_depth"]["how"] == "unsupported"
    assert "--speculation-depth" in echo["speculation_depth"]["reason"]
    assert state["mode"] == "leased" and state["knobs"]["batch_cap"]["now"] == 5
    assert (far["batch_cap"]["how"], far["batch_cap"]["now"]) == ("approximated", 8)
    assert far["batch_cap"]["reason"] == "the engine allows 1 to 8"
    assert after["mode"] == "static" and most is None


@pytest.mark.parametrize(("policy", "taken"), [("fcfs", False), ("priority", True)])
def test_an_engine_that_serves_by_priority(policy: str, taken: bool) -> None:
    """Says so by its knob."""

    async def ask(url: str) -> bool:
        async with EngineClient(Target(url)) as engine:
            return await offers(engine, "priority_routing")

    with running(scheduling_policy=policy) as mock:
        assert asyncio.run(ask(mock.url)) is taken


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(1, 12))
def test_the_gate(caps: list[int], count: int) -> None:
    """No more inside than the largest cap so far, in order, and everybody gets in at last."""

    async def run() -> list[int]:
        gate, order, inside = ConcurrencyCap(), [], 0
        gate.resize(caps[0])
        highest = caps[0]

        async def one(number: int) -> None:
            nonlocal inside
            await gate.enter()
            inside += 1
            order.append(number)
            assert inside <= highest
            await asyncio.sleep(0)
            inside -= 1
            gate.leave()

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        for cap in caps:
            highest = max(highest, cap)
            gate.resize(cap)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == list(range(count))


def test_those_who_give_up_leave_their_place_to_others() -> None:
    """While they wait, and just after they were let in."""

    async def run() -> None:
        gate = ConcurrencyCap()
        gate.resize(1)
        await gate.enter()
        waiting = [asyncio.create_task(gate.enter()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        gate.leave()
        waiting[1].cancel()
        await asyncio.wait(waiting[:2])
        async with asyncio.timeout(60):
            await waiting[2]

    asyncio.run(run())


@pytest.mark.parametrize("cap", [1, 7])
def test_an_engine_without_the_plug_in(cap: int) -> None:
    """The batch cap becomes one on requests in flight; nothing else acts."""

    async def run(gate: ConcurrencyCap) -> Any:
        return await turn(None, gate, KNOBS, WANTED | {"batch_cap": cap}, 1.0)

    gate = ConcurrencyCap()
    echo: dict[str, dict[str, Any]] = asyncio.run(run(gate))
    assert gate.most == cap
    assert echo["batch_cap"]["how"] == "approximated" and echo["batch_cap"]["now"] == cap
    others = [entry["how"] for name, entry in echo.items() if name != "batch_cap"]
    assert others == ["unsupported"] * (len(KNOBS) - 1)
