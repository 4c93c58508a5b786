"""All knobs under one lease: all or none, acknowledged, and back by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve import spaces
from jaxserve.engine_control.command import ENGINE_KNOBS
from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import Pool, build_pools
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import EngineRefused
from jaxserve.gateway.knobs import steering as module
from jaxserve.gateway.knobs.engine import EngineOffer
from jaxserve.gateway.knobs.hold import ControlHold
from jaxserve.gateway.knobs.steering import Steering
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver, RunningGateway
from tests.gateway.knob_engines import PluginEngine, SglangEngine
from tests.gateway.stub_engine import StubEngine
from tests.patience import wait_until

pytestmark = pytest.mark.anyio


class FakeEngine:
    """Knobs without a server."""

    def __init__(self, name: str = "vllm-0", leases: bool = True, **most: float) -> None:
        """Args: its name, whether it has leases, and the static value of what it offers."""
        self.name, self.leases, self.static = name, leases, most
        self.values = dict(most)
        self.puts: list[tuple[dict[str, float], float]] = []
        self.releases = 0
        self.asked = 0
        self.refuses = self.away = False

    async def offer(self) -> EngineOffer:
        self.asked += 1
        if self.away:
            return EngineOffer(reason=f"engine {self.name} cannot be reached")
        knobs = {
            name: {"now": self.values[name], "static": most, "least": 1.0, "most": most}
            for name, most in self.static.items()
        }
        return EngineOffer(engine_id="x", knobs=knobs, reason="it has no such knob")

    async def put(self, values: Mapping[str, float], lease_s: float) -> EngineOffer:
        await asyncio.sleep(0)
        if self.refuses or self.away:
            raise EngineRefused(f"engine {self.name} refused")
        assert not set(values) - set(self.static)
        self.puts.append((dict(values), lease_s))
        self.values.update(values)
        return await self.offer()

    async def release(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise EngineRefused(f"engine {self.name} cannot be reached")
        self.releases += 1
        self.values = dict(self.static)


@asynccontextmanager
async def steered(
    *engines: FakeEngine, pools: Mapping[str, Pool] | None = None
) -> AsyncIterator[Steering]:
    """Steers some engines."""
    specs = [EngineSpec("vllm", f"http://{one.name}", one.name, "p") for one in engines]
    steering = Steering(pools or build_pools(specs, 10, 2), engines, 2, ControlHold())
    steering.begin()
    try:
        yield steering
    finally:
        await steering.close()


async def test_each_knob_where_it_is_most_exact() -> None:
    """By engines that all offer it, else by the gateway, else by a restart or nobody."""
    first = FakeEngine("vllm-0", batch_cap=64, token_budget=2048)
    async with steered(first, FakeEngine("vllm-1", batch_cap=32)) as steering:
        state = await steering.state()
    knobs = state["knobs"]
    assert tuple(knobs) == ENGINE_KNOBS
    assert (knobs["batch_cap"]["how"], knobs["batch_cap"]["where"]) == ("exact", "engine")
    assert (knobs["batch_cap"]["most"], knobs["batch_cap"]["static"]) == (32, None)
    assert knobs["token_budget"]["how"] == "unsupported"
    assert knobs["token_budget"]["reason"] == "vllm-1: it has no such knob"
    assert knobs["priority_routing"]["how"] == "approximated"
    assert knobs["quantization_tier"]["how"] == "restart_required"
    assert (state["mode"], state["held"], state["lease_left_s"]) == ("static", False, 0.0)
    assert state["engines"]["vllm-1"] == {"engine_id": "x", "reason": "it has no such knob"}


async def test_a_command_is_obeyed_and_acknowledged() -> None:
    """The answer is what is in force, of engines and of the gateway."""
    engine = FakeEngine(batch_cap=64, token_budget=2048)
    async with steered(engine) as steering:
        state = await steering.put({"batch_cap": 8, "priority_routing": 0}, 30.0)
        assert state["mode"] == "leased" and 29.0 < state["lease_left_s"] <= 30.0
        now = {name: knob.get("now") for name, knob in state["knobs"].items()}
        assert (now["batch_cap"], now["priority_routing"]) == (8, 0)
        assert engine.puts == [({"batch_cap": 8}, 30.0)]
        later = await steering.put({}, 40.0)
        assert later["version"] > state["version"] and later["lease_left_s"] > 30.0
        assert engine.puts[-1] == ({}, 40.0) and engine.values["batch_cap"] == 8
        state = await steering.release()
        assert state["mode"] == "static" and state["knobs"]["batch_cap"]["now"] == 64
        assert state["knobs"]["priority_routing"]["now"] == 1


async def test_a_command_waits_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has just looked sends a command that engines answer once: they answer between two
    steps, and every further question would put the command off by one."""
    engine = FakeEngine(batch_cap=64)
    async with steered(engine) as steering:
        await steering.state()
        engine.asked = 0
        state = await steering.put({"batch_cap": 8}, 30.0)
        assert state["knobs"]["batch_cap"]["now"] == 8
        assert (len(engine.puts), engine.asked) == (1, 1)  # the answer to the command itself
        # What was seen is not believed for long.
        monkeypatch.setattr(module, "_RECENT_S", 0.0)
        await steering.put({"batch_cap": 9}, 30.0)
        assert engine.asked == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warp": 1.0}, "knob 'warp' is unknown"),
        ({"batch_cap": 65.0}, "batch_cap is 65; it must be a whole number from 1 to 64"),
        ({"batch_cap": 0.0}, "batch_cap is 0; it must be a whole number from 1 to 64"),
        ({"batch_cap": 8.5}, "batch_cap is 8.5; it must be a whole number"),
        ({"batch_cap": float("nan")}, "batch_cap is nan"),
        ({"priority_routing": 0.5}, "priority_routing is 0.5; it must be a whole number"),
        ({"speculation_depth": 2.0}, "speculation_depth cannot be turned here: vllm-0: it has no"),
    ],
)
async def test_all_or_none(values: dict[str, float], message: str) -> None:
    """One value that cannot be, and nothing is turned."""
    engine = FakeEngine(batch_cap=64, token_budget=2048)
    async with steered(engine) as steering:
        before = await steering.put({"token_budget": 100.0}, 30.0)
        with pytest.raises(InputError, match=message):
            await steering.put({"token_budget": 50.0, **values}, 30.0)
        after = await steering.state()
        assert after["knobs"] == before["knobs"] and after["version"] == before["version"]
    assert len(engine.puts) == 1


async def test_one_engine_that_refuses() -> None:
    """All are back at their static values: no half of a command stays."""
    good, bad = FakeEngine("vllm-0", batch_cap=64), FakeEngine("vllm-1", batch_cap=64)
    async with steered(good, bad) as steering:
        await steering.put({"batch_cap": 8, "priority_routing": 0}, 30.0)
        bad.refuses = True
        with pytest.raises(EngineRefused, match="vllm-1 refused"):
            await steering.put({"batch_cap": 4, "priority_routing": 0}, 30.0)
        state = await steering.state()
        assert state["mode"] == "static" and state["knobs"]["batch_cap"]["now"] == 64
        assert state["knobs"]["priority_routing"]["now"] == 1


async def test_a_lease_ends_by_itself() -> None:
    """In the gateway, and in an engine that has none of its own; a new command starts it anew."""
    engine = FakeEngine("sglang-0", leases=False, batch_cap=64)
    async with steered(engine) as steering:
        await steering.put({"batch_cap": 8}, 0.2)
        await steering.put({"batch_cap": 8, "priority_routing": 0}, 0.3)
        await asyncio.sleep(0.22)
        while (await steering.state())["mode"] == "leased":
            await asyncio.sleep(0.01)
        state = await steering.state()
        assert state["knobs"]["batch_cap"]["now"] == 64
        assert state["knobs"]["priority_routing"]["now"] == 1


async def test_the_switch() -> None:
    """On hold the static values are in force and no command is taken; then it goes on."""
    engine = FakeEngine(batch_cap=64)
    async with steered(engine) as steering:
        await steering.put({"batch_cap": 8}, 30.0)
        state = await steering.hold(True)
        assert state["held"] and state["knobs"]["batch_cap"]["now"] == 64
        with pytest.raises(InputError, match="control is switched off"):
            await steering.put({"batch_cap": 8}, 30.0)
        assert not (await steering.hold(False))["held"]
        assert (await steering.put({"batch_cap": 8}, 30.0))["knobs"]["batch_cap"]["now"] == 8
    assert engine.values["batch_cap"] == 64  # closed


async def test_an_engine_that_is_away_for_a_while() -> None:
    """The gateway does for it what it can; what it did is undone when engines do it again."""
    one, other = FakeEngine("vllm-0", batch_cap=64), FakeEngine("vllm-1", batch_cap=64)
    specs = [EngineSpec("vllm", f"http://{e.name}", e.name, "p") for e in (one, other)]
    pools = build_pools(specs, 10, 2)
    async with steered(one, other, pools=pools) as steering:
        other.away = True
        state = await steering.put({"batch_cap": 8}, 30.0)
        assert state["knobs"]["batch_cap"]["how"] == "approximated"
        assert [replica.places for replica in pools["p"].replicas] == [10, 10]
        assert one.values["batch_cap"] == 64
        other.away = False
        state = await steering.put({"batch_cap": 16}, 30.0)
        assert state["knobs"]["batch_cap"]["how"] == "exact"
        assert [replica.places for replica in pools["p"].replicas] == [None, None]


async def test_an_engine_without_leases_is_put_back_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it could not be reached when the lease ended, and after a restart of the gateway."""
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    engine = FakeEngine("sglang-0", leases=False, batch_cap=64)
    engine.values["batch_cap"] = 4  # an earlier gateway was killed
    async with steered(engine) as steering:
        while engine.values["batch_cap"] != 64:
            await asyncio.sleep(0.01)
        await steering.put({"batch_cap": 8}, 30.0)
        engine.away = True
        await steering.release()
        engine.away = False
        while engine.values["batch_cap"] != 64:
            await asyncio.sleep(0.01)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(-1, 70), st.sampled_from([0.0, 1.0])),
        st.tuples(st.sampled_from(["release", "hold", "free", "refuse", "obey"])),
    ),
    max_size=12,
)


@given(steps=STEPS)
async def test_whatever_is_commanded(steps: list[tuple[Any, ...]]) -> None:
    """Static values without a lease, inside the range with one, and the answer tells the truth."""
    engine = FakeEngine(batch_cap=64)
    async with steered(engine) as steering:
        for what, *values in steps:
            try:
                if what == "put":
                    cap, routing = values
                    await steering.put({"batch_cap": cap, "priority_routing": routing}, 30.0)
                    assert engine.values["batch_cap"] == cap
                elif what in ("hold", "free"):
                    await steering.hold(what == "hold")
                elif what == "release":
                    await steering.release()
                else:
                    engine.refuses = what == "refuse"
            except (InputError, EngineRefused):
                pass
            state = await steering.state()
            assert state["knobs"]["batch_cap"]["now"] == engine.values["batch_cap"]
            assert 1 <= engine.values["batch_cap"] <= 64
            if state["mode"] == "static":
                assert engine.values["batch_cap"] == 64
                assert state["knobs"]["priority_routing"]["now"] == 1
            assert not (state["held"] and state["mode"] == "leased")


def put(gateway: RunningGateway, lease_s: float = 30.0, **knobs: float) -> httpx.Response:
    return gateway.control.put("/control/knobs", json={"lease_s": lease_s, "knobs": knobs})


def test_a_real_gateway(start: Start) -> None:
    """Knobs are turned over the control port of a gateway with a plug-in engine."""
    with PluginEngine() as engine:
        gateway = start([engine])
        answer = put(gateway, batch_cap=8, priority_routing=0).json()
        assert answer["knobs"]["batch_cap"]["now"] == 8 == engine.now("batch_cap")
        assert answer["engines"]["vllm-0"]["engine_id"] == "first"
        engine.lies["batch_cap"] = 5
        refused = put(gateway, batch_cap=9)
        assert refused.status_code == 502
        assert refused.json()["error"] == "engine vllm-0 has batch_cap 5 after it was told 9"
        assert engine.now("batch_cap") == 64
        engine.lies.clear()
        put(gateway, batch_cap=8)
        assert gateway.control.delete("/control/knobs").json()["mode"] == "static"
        assert engine.now("batch_cap") == 64
        put(gateway, batch_cap=8)
        gateway.stop()
        assert engine.now("batch_cap") == 64


def test_a_cap_of_the_gateway_is_felt(engine: StubEngine, start: Start) -> None:
    """Two and no look-ahead: two run, the others wait; without the lease all run."""
    gateway = start([engine], look_ahead=0)
    assert put(gateway, batch_cap=2).json()["knobs"]["batch_cap"]["how"] == "approximated"
    clients = [Leaver(gateway.port, {"stream": True, "stub": {"gated": True}}) for _ in range(5)]
    gateway.wait_for_queue(3)
    wait_until(lambda: engine.running == 2)
    gateway.control.delete("/control/knobs")
    wait_until(lambda: engine.running == 5)
    for client in clients:
        client.leave()


def test_an_sglang_behind_a_gateway(start: Start) -> None:
    """Its cap is turned, told, and put back when the lease is over; a gateway that was killed
    leaves it to the next one."""
    with SglangEngine(most=48) as engine:
        engine.states[0]["pp_max_micro_batch_size"] = 3
        gateway = start([f"sglang={engine.url}"])
        wait_until(lambda: engine.cap == 48)
        assert put(gateway, 0.5, batch_cap=8).json()["knobs"]["batch_cap"]["now"] == 8
        wait_until(lambda: engine.cap == 48)
        assert put(gateway, priority_routing=0).status_code == 200  # none of its business
        assert engine.cap == 48
        refused = put(gateway, token_budget=512)
        assert refused.status_code == 400
        assert "SGLang has no such knob while it serves" in refused.json()["error"]


def test_the_gateways_knobs_are_those_of_the_simulator() -> None:
    """It loads nothing of it, so that its own lists are held against it here."""
    assert set(ENGINE_KNOBS) == {*spaces.KNOBS, "token_budget"} - {"replicas"}
    assert set(module._RESTART) == {*spaces.RESTART_KNOBS, "speculation_depth"}


def test_a_refused_token_is_in_the_log(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """When the gateway starts: it would approximate the knobs, and nobody would see why."""
    with PluginEngine() as engine:
        engine.says = (401, b'{"error": "the token is wrong"}')
        start([engine])
        wait_until(lambda: "offers no knobs: engine vllm-0 refused: the token is" in caplog.text)
