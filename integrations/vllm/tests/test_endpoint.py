"""The routes, in front of engines that are not there."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from jaxserve_vllm import endpoint
from jaxserve_vllm.endpoint import ControlEndpoint
from jaxserve_vllm.engine_control.leased_knobs import LeasedKnobs, OfferedKnob
from jaxserve_vllm.engine_control.routes import answer_question
from jaxserve_vllm.engine_control.step_log import StepLog

TOKEN = "0123456789abcdef"
MOST = ((b"0", 64), (b"1", 16))
"""The largest batch cap of two engines."""


class Engines:
    """vLLM's client of two engines; ``answer`` is theirs."""

    core_engines: tuple[bytes, ...] = (b"0", b"1")

    def __init__(self, answer: dict[str, Any] | Exception | None = None) -> None:
        self.asked: list[tuple[bytes, dict[str, Any]]] = []
        self.answer = {"mode": "static"} if answer is None else answer

    async def _call_utility_async(self, method: str, argument: str, *, engine: bytes) -> str:
        assert method == endpoint.METHOD
        self.asked.append((engine, json.loads(argument)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return json.dumps(self.answer)


class NewEngines(Engines):
    """The same from 0.32 on."""

    async def call_utility_all_async(self, method: str, argument: str) -> list[str]:
        return [
            await self._call_utility_async(method, argument, engine=e) for e in self.core_engines
        ]


def knob(most: float) -> OfferedKnob:
    """A knob that stands at its most at first."""
    values: list[float | None] = [most]
    return OfferedKnob(1, most, values.append, lambda: values[-1])


def ask(core: Any, method: str, path: str, **kwargs: Any) -> httpx.Response:
    """A request to a server with the plug-in, from this machine."""

    async def go() -> httpx.Response:
        app, plugin = FastAPI(), ControlEndpoint()
        plugin.attach_router(app)
        await plugin.init_state(SimpleNamespace(engine_core=core), None, None)
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, f"/jaxserve/{path}", **kwargs)

    return asyncio.run(go())


@pytest.mark.parametrize("kind", [Engines, NewEngines])
def test_every_engine_is_asked(kind: type[Engines]) -> None:
    """Data-parallel ones included; each answers for itself."""
    core = kind()
    body = {"lease_s": 5, "knobs": {"batch_cap": 8}}
    answer = ask(core, "PUT", "control", json=body)
    assert (answer.status_code, answer.json()) == (200, {"engines": [{"mode": "static"}] * 2})
    assert core.asked == [
        (engine, {"ask": asked, "lease_s": 5.0, "knobs": {"batch_cap": 8}})
        for asked in ("check", "put")
        for engine in core.core_engines
    ]


@pytest.mark.parametrize("kind", [Engines, NewEngines])
def test_what_one_engine_refuses_no_other_obeys(kind: type[Engines]) -> None:
    """All or none: the others keep the values and the lease that they had."""

    class Two(kind):
        """Engines of which one allows a larger cap than the other."""

        def __init__(self) -> None:
            super().__init__()
            self.knobs = {engine: LeasedKnobs({"batch_cap": knob(most)}) for engine, most in MOST}

        async def _call_utility_async(self, method: str, argument: str, *, engine: bytes) -> str:
            knobs = self.knobs[engine]
            answer = answer_question(json.loads(argument), knobs, StepLog(), knobs.state)
            return json.dumps(answer)

    core = Two()
    for cap, status in ((8, 200), (32, 400)):
        body = {"lease_s": 5, "knobs": {"batch_cap": cap}}
        assert ask(core, "PUT", "control", json=body).status_code == status
        for knobs in core.knobs.values():
            state = knobs.state()
            assert (state["version"], state["knobs"]["batch_cap"]["now"]) == (1, 8)


def test_one_engine_is_asked_once() -> None:
    """A single engine refuses whole commands by itself."""
    core = Engines()
    core.core_engines = (b"0",)
    assert ask(core, "PUT", "control", json={"lease_s": 5}).status_code == 200
    assert [asked["ask"] for _, asked in core.asked] == ["put"]


@pytest.mark.parametrize(
    ("method", "path", "question"),
    [
        ("GET", "control", {"ask": "state"}),
        ("DELETE", "control", {"ask": "release"}),
        ("GET", "steps", {"ask": "steps", "after": 0}),
        ("GET", "steps?after=17", {"ask": "steps", "after": 17}),
    ],
)
def test_questions(method: str, path: str, question: dict[str, Any]) -> None:
    """Each route asks the engines its own question."""
    core = Engines()
    assert ask(core, method, path).status_code == 200
    assert [asked for _, asked in core.asked] == [question, question]


def test_what_an_engine_refuses_is_a_bad_request() -> None:
    """With its own sentence."""
    core = Engines({"refused": "batch_cap is 65; this engine allows 1 to 64"})
    answer = ask(core, "PUT", "control", json={"lease_s": 1})
    assert answer.status_code == 400
    assert answer.json() == {"error": "batch_cap is 65; this engine allows 1 to 64"}


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (Exception("'EngineCoreProc' object has no attribute 'jaxserve_control'"), "--scheduler-c"),
        (RuntimeError("EngineCore encountered an issue"), "an engine cannot answer: EngineCore"),
    ],
)
def test_engines_that_cannot_answer(failure: Exception, sentence: str) -> None:
    """The reason, as a fault of the server."""
    answer = ask(Engines(failure), "GET", "control")
    assert answer.status_code == 503
    assert sentence in answer.json()["error"]


def test_an_engine_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is told so, and does not wait for ever."""

    class Silent(NewEngines):
        async def call_utility_all_async(self, method: str, argument: str) -> list[str]:
            return await asyncio.Future()

    monkeypatch.setattr(endpoint, "ANSWER_WITHIN_S", 0.01)
    answer = ask(Silent(), "GET", "control")
    assert answer.status_code == 503
    assert "has not answered" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "control"), ("PUT", "control"), ("DELETE", "control"), ("GET", "steps")],
)
def test_every_route_is_guarded(monkeypatch: pytest.MonkeyPatch, method: str, path: str) -> None:
    """By the token where there is one, else by where the request comes from."""
    core = Engines()
    refused = ask(core, method, path, headers={"origin": "https://evil.example"})
    assert refused.status_code == 403
    monkeypatch.setenv("JAXSERVE_CONTROL_TOKEN", TOKEN)
    refused = ask(core, method, path)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert TOKEN not in refused.text
    assert core.asked == []
    given = {"authorization": f"Bearer {TOKEN}"}
    assert ask(core, method, path, headers=given, content=b'{"lease_s": 1}').status_code == 200
