"""The mock engine and the plug-in for vLLM answer alike at their control endpoints."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

import jaxserve_vllm.access
import jaxserve_vllm.command
import jaxserve_vllm.control
import jaxserve_vllm.endpoint
import jaxserve_vllm.step_trace
from jaxserve.errors import InputError
from jaxserve.mock_engine import access, command, steps
from jaxserve.mock_engine.app import MockEngine
from jaxserve.mock_engine.clock import ScaledClock
from jaxserve.mock_engine.control import Bounds, Control, offered_knobs
from tests.mock_engine.engine_in_virtual_time import machine

TOKEN = "0123456789abcdef"
MACHINE = machine(speculation_depth=4)

Ask = Callable[..., httpx.Response]


def plug_in() -> Any:
    """The plug-in's endpoint before an engine with the mock's knobs."""
    values: dict[str, Any] = {}

    def knob(name: str, bounds: Bounds) -> Any:
        values[name] = bounds.most

        def turn(value: float) -> None:
            share = name == "kv_budget_fraction"
            values[name] = max(bounds.least, round(value * 200) / 200) if share else value

        return jaxserve_vllm.control.Knob(bounds.least, bounds.most, turn, lambda: values[name])

    knobs = {
        name: knob(name, one)
        if isinstance(one, Bounds)
        else jaxserve_vllm.control.NotOffered(one.reason)
        for name, one in offered_knobs(MACHINE).items()
    }
    control = jaxserve_vllm.control.Control(knobs)

    class Core:
        async def call_utility_all_async(self, method: str, argument: str) -> list[str]:
            question = json.loads(argument)
            try:
                if question["ask"] == "steps":
                    trace = jaxserve_vllm.step_trace.StepTrace()
                    return [json.dumps(trace.after(question["after"]))]
                if question["ask"] == "put":
                    asked = jaxserve_vllm.command.Command(question["lease_s"], question["knobs"])
                    control.put(asked)
                elif question["ask"] == "release":
                    control.release()
            except jaxserve_vllm.command.CommandError as error:
                return [json.dumps({"refused": str(error)})]
            return [json.dumps(control.state())]

    app, endpoint = FastAPI(), jaxserve_vllm.endpoint.ControlEndpoint()
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
    static = {
        "batch_cap": 8,
        "token_budget": 128,
        "kv_budget_fraction": 1.0,
        "speculation_depth": 4,
    }
    assert now(begin) == static
    turned = {"batch_cap": 3, "kv_budget_fraction": 0.503, "speculation_depth": 0}
    held = state(ask("PUT", "control", json={"lease_s": 60, "knobs": turned}))
    assert (held["mode"], held["version"]) == ("leased", 1)
    assert 50 < held["lease_left_s"] <= 60
    assert now(held) == {**static, **turned, "kv_budget_fraction": 0.505}
    assert held["knobs"]["batch_cap"] == {
        "offered": True,
        "now": 3,
        "static": 8,
        "least": 1,
        "most": 8,
    }
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
    assert trace == {"columns": list(steps.COLUMNS), "rows": []}


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
        ("GET", "control", {"headers": {}}, 401),
        ("PUT", "control", {"headers": {"authorization": "Bearer no"}}, 401),
        ("DELETE", "control", {"headers": {}}, 401),
        ("GET", "steps", {"headers": {}}, 401),
        ("PUT", "control", {"content": f'{{"lease_s": {10**400}}}'}, 400),
        (
            "PUT",
            "control",
            {"content": f'{{"lease_s": 1, "knobs": {{"batch_cap": {10**400}}}}}'},
            400,
        ),
    ],
)
def test_refusals(ask: Ask, method: str, path: str, options: dict[str, Any], status: int) -> None:
    """One sentence, and nothing of the token."""
    answer = ask(method, path, **options)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"] and TOKEN not in answer.text
    assert ("www-authenticate" in answer.headers) == (status == 401)


NUMBERS = st.one_of(
    st.integers(-5, 5000), st.floats(), st.booleans(), st.none(), st.text(max_size=3)
)
COMMANDS = st.one_of(
    st.binary(max_size=20),
    st.fixed_dictionaries(
        {},
        optional={
            "lease_s": NUMBERS,
            "knobs": st.one_of(
                NUMBERS,
                st.dictionaries(
                    st.sampled_from([*command.ENGINE_KNOBS, "cap"]), NUMBERS, max_size=3
                ),
            ),
            "lease": NUMBERS,
        },
    ).map(lambda body: json.dumps(body).encode()),
    st.sampled_from([b'{"lease_s": 1, "lease_s": 2}', b"[1]", b"1e999", b"[" * 100_000]),
)


@given(COMMANDS)
def test_commands_are_read_alike(text: bytes) -> None:
    """The same values, or the same sentence."""

    def read(parse: Callable[[bytes], Any]) -> Any:
        try:
            read = parse(text)
        except ValueError as error:
            return str(error)
        return read.lease_s, dict(read.knobs)

    assert read(command.read_command) == read(jaxserve_vllm.command.parse_command)


HOSTS = st.sampled_from([None, "127.0.0.1", "::1", "localhost", "10.0.0.1", "example.org"])
HEADERS = st.dictionaries(
    st.sampled_from(["origin", "forwarded", "via", "authorization", "host"]),
    st.sampled_from(
        ["localhost:8000", "[::1]:8000", "10.0.0.1", f"Bearer {TOKEN}", f"bearer  {TOKEN} ", "é"]
    ),
)


@given(st.sampled_from([None, TOKEN]), HOSTS, HEADERS)
def test_access_is_given_alike(token: str | None, host: str | None, headers: dict) -> None:
    """To the same callers, with the same sentence to all others."""
    theirs = jaxserve_vllm.access.refusal(token, host, headers)
    assert access.refusal(token, host, headers) == theirs


def test_names_and_bounds_are_the_same() -> None:
    """Those that both modules write down."""
    assert command.ENGINE_KNOBS == jaxserve_vllm.command.ENGINE_KNOBS
    assert command.MAX_LEASE_S == jaxserve_vllm.command.MAX_LEASE_S
    assert steps.COLUMNS == jaxserve_vllm.step_trace.COLUMNS
    assert steps.KEPT_STEPS == jaxserve_vllm.step_trace.KEPT_STEPS
    with pytest.raises(InputError, match="has 3 characters; 16 or more"):
        access.control_token({"JAXSERVE_CONTROL_TOKEN": "abc"})
    with pytest.raises(InputError, match="priority_routing cannot be turned"):
        Control(MACHINE, {"priority_routing": 1})
