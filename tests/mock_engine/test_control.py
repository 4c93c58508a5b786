"""The control routes of the mock engine, and of the plug-in for vLLM before an engine like it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from jaxserve.engine_control.routes import answer_question
from jaxserve.engine_control.step_log import COLUMNS, StepLog
from jaxserve.mock_engine.app import MockEngine
from jaxserve.mock_engine.clock import ScaledClock
from jaxserve.mock_engine.machine import leased_knobs
from jaxserve_vllm.endpoint import ControlEndpoint
from tests.mock_engine.engine_in_virtual_time import machine

TOKEN = "0123456789abcdef"
MACHINE = machine(speculation_depth=4)

Ask = Callable[..., httpx.Response]


def plug_in() -> Any:
    """The plug-in's endpoint before an engine with the mock's knobs."""
    knobs, log = leased_knobs(MACHINE, {}), StepLog()

    class Core:
        core_engines = (b"0",)

        async def call_utility_all_async(self, method: str, argument: str) -> list[str]:
            return [json.dumps(answer_question(json.loads(argument), knobs, log, knobs.state))]

    app, endpoint = FastAPI(), ControlEndpoint()
    endpoint.attach_router(app)
    asyncio.run(endpoint.init_state(SimpleNamespace(engine_core=Core()), None, None))
    return app


def mock() -> Any:
    """The mock engine."""
    return MockEngine(MACHINE, ScaledClock(1.0))


@pytest.fixture(params=[plug_in, mock], ids=["plug-in", "mock"])
def ask(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Sends a request with the token."""
    monkeypatch.setenv("JAXSERVE_CONTROL_TOKEN", TOKEN)
    app = request.param()
    transport = httpx.ASGITransport(app, client=("10.0.0.1", 5000))

    def send(method: str, path: str, **options: Any) -> httpx.Response:
        async def go() -> httpx.Response:
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, f"/jaxserve/{path}", **options)

        options.setdefault("headers", {"authorization": f"Bearer {TOKEN}"})
        return asyncio.run(go())

    yield send


def test_a_conversation(ask: Ask) -> None:
    """Values, lease, version and refusals, step by step."""

    def state(answer: httpx.Response) -> dict[str, Any]:
        assert answer.status_code == 200, answer.text
        (engine,) = answer.json()["engines"]
        return engine

    def now(state: dict[str, Any]) -> dict[str, Any]:
        return {name: one["now"] for name, one in state["knobs"].items() if one["offered"]}

    begin = state(ask("GET", "control"))
    assert (begin["mode"], begin["lease_left_s"], begin["version"]) == ("static", 0.0, 0)
    static = {"batch_cap": 8, "token_budget": 128, "kv_budget_fraction": 1, "speculation_depth": 4}
    assert now(begin) == static
    turned = {"batch_cap": 3, "kv_budget_fraction": 0.503, "speculation_depth": 0}
    held = state(ask("PUT", "control", json={"lease_s": 60, "knobs": turned}))
    assert (held["mode"], held["version"]) == ("leased", 1)
    assert 50 < held["lease_left_s"] <= 60
    assert now(held) == {**static, **turned, "kv_budget_fraction": 0.505}
    shown = {"offered": True, "now": 3, "static": 8, "least": 1, "most": 8}
    assert held["knobs"]["batch_cap"] == shown
    bad = {"lease_s": 60, "knobs": {"token_budget": 64, "batch_cap": 9}}
    refused = ask("PUT", "control", json=bad)
    assert refused.status_code == 400
    assert refused.json() == {"error": "batch_cap is 9; this engine allows 1 to 8"}
    assert now(state(ask("GET", "control"))) == now(held)
    renewed = state(ask("PUT", "control", json={"lease_s": 90}))
    assert now(renewed) == now(held) and renewed["lease_left_s"] > 80
    released = state(ask("DELETE", "control"))
    assert now(released) == static and released["mode"] == "static" and released["version"] == 3
    assert state(ask("DELETE", "control"))["version"] == 3
    hardware = ask("PUT", "control", json={"lease_s": 1, "knobs": {"quantization_tier": 1}})
    assert hardware.json()["error"].startswith("quantization_tier cannot be turned: vLLM holds")
    trace = state(ask("GET", "steps?after=3"))
    assert trace == {"columns": list(COLUMNS), "rows": []}


def test_a_lease_ends_by_itself(ask: Ask) -> None:
    """The state never shows one that is over."""
    ask("PUT", "control", json={"lease_s": 1e-6, "knobs": {"batch_cap": 1}})
    (engine,) = ask("GET", "control").json()["engines"]
    assert (engine["mode"], engine["knobs"]["batch_cap"]["now"]) == ("static", 8)


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("PUT", "control", {"content": b"{"}, 400),
        ("PUT", "control", {"content": b" " * 20_000}, 413),
        ("GET", "steps?after=-1", {}, 400),
        ("GET", "steps?after=%C2%B2", {}, 400),
        ("PUT", "control", {"json": {"lease_s": 5, "knobs": {"cap": 1}}}, 400),
        ("GET", "control", {"headers": {}}, 401),
        ("PUT", "control", {"headers": {"authorization": "Bearer no"}}, 401),
        ("DELETE", "control", {"headers": {}}, 401),
        ("GET", "steps", {"headers": {}}, 401),
        ("PUT", "control", {"json": {"lease_s": 10**400}}, 400),
        ("PUT", "control", {"json": {"lease_s": 1, "knobs": {"batch_cap": 10**400}}}, 400),
    ],
)
def test_refusals(ask: Ask, method: str, path: str, options: dict[str, Any], status: int) -> None:
    """One sentence, and nothing of the token."""
    answer = ask(method, path, **options)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"] and TOKEN not in answer.text
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_static_values_are_whole_blocks() -> None:
    """A share of the KV blocks is shown as it is in force."""
    shown = leased_knobs(MACHINE, {"kv_budget_fraction": 0.503}).state()["knobs"]
    assert shown["kv_budget_fraction"]["static"] == shown["kv_budget_fraction"]["now"] == 0.505
