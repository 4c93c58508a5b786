"""Asking an engine, and what is said where it does not answer as it should."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.live.engine_client import ChatClient, EngineClient, EngineError, Target
from jaxserve.live.prompts import RandomPrompts
from tests.gateway.stub_engine import PROMPT_TOKENS, RawServer, StubEngine
from tests.mock_engine.conftest import running
from tests.server.live.paid_engine import PaidEngine


def ask(url: str, what: Callable[[EngineClient], Awaitable[Any]], **target: str) -> Any:
    """What some question to the engine gives."""

    async def run() -> Any:
        async with EngineClient(Target(url, **target)) as engine:
            return await what(engine)

    return asyncio.run(run())


def test_a_gateway_in_front_is_asked_for_completions() -> None:
    """With its own token; the engine itself tells the rest, and never gets the gateway's token."""

    async def both(client: EngineClient) -> Any:
        await client.complete([20] * 30, 5)
        return await client.plug_in("control"), await client.kv_pool_tokens()

    with running(kv_blocks=500) as engine:
        with StubEngine() as gateway:
            keys = {"gateway_url": gateway.url, "gateway_token": "of the gateway"}
            state, pool = ask(engine.url, both, key="sk-engine", **keys)
        assert state is not None and pool == 8000
        assert engine.loop.log.after(0)["rows"] == []
        with pytest.raises(EngineError) as caught:
            ask(engine.url, lambda client: client.complete([20] * 30, 5), **keys)
    [asked] = gateway.seen
    assert asked.path == "/v1/completions"
    assert asked.headers["authorization"] == "Bearer of the gateway"
    assert str(caught.value).startswith(f"gateway {gateway.url} cannot be reached")


def test_the_plug_in() -> None:
    """Tells KV tokens and knobs; without it there is nothing, and no error."""

    async def all_of_it(client: EngineClient) -> tuple[Any, Any]:
        return await client.kv_pool_tokens(), await client.plug_in("control")

    with running(kv_blocks=500) as engine:
        pool, state = ask(engine.url, all_of_it)
    assert pool == 16 * 500 and state["knobs"]["batch_cap"]["now"] == 8
    with StubEngine() as bare:
        assert ask(bare.url, all_of_it) == (None, None)


def test_the_key_is_sent_and_never_shown() -> None:
    """To the engine's interface, not to the plug-in."""
    with StubEngine() as engine:
        ask(engine.url, lambda client: client.complete([20], 2), key="sk-secret")
        assert engine.seen[0].headers["authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in repr(Target(engine.url, "sk-secret", "sk-secret"))


@pytest.mark.parametrize(
    ("says", "said"),
    [
        (b"HTTP/1.1 500 No\r\ncontent-length: 4\r\n\r\noops", "/v1/models with an error: 500 oops"),
        (b"HTTP/1.1 302 No\r\nlocation: http://x\r\ncontent-length: 0\r\n\r\n", "error: 302"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", "lists no model"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n{'data': []", "lists no model"),
        (b"garbage\r\n\r\n", "cannot be reached"),
        (b"", "cannot be reached"),
    ],
)
def test_an_engine_that_is_none(says: bytes, said: str) -> None:
    """Is told of in one sentence."""
    with RawServer(says) as server, pytest.raises(InputError) as error:
        ask(server.url, lambda client: client.kv_pool_tokens())
    assert said in str(error.value) and "\n" not in str(error.value)


def test_nobody_listens() -> None:
    """Is said so."""
    with RawServer() as server:
        pass
    with pytest.raises(InputError, match="cannot be reached"):
        ask(server.url, lambda client: client.kv_pool_tokens())


@pytest.mark.parametrize("url", ["localhost:1", "ftp://x", "http://", "http://u:p@x", "http://x/y"])
def test_what_is_no_address(url: str) -> None:
    """Is refused; a password in it would end up in messages."""
    with pytest.raises(InputError, match="--url"):
        Target(url)


def complete(
    monkeypatch: pytest.MonkeyPatch, stub: dict[str, Any], events: list[float]
) -> tuple[Any, Any]:
    """A completion by an engine that does as ``stub`` says, and what the engine was asked."""

    async def ask_it(client: EngineClient) -> Any:
        request = client._session.request

        def with_stub(method: str, url: str, **options: Any) -> Any:
            options.get("json", {})["stub"] = stub
            return request(method, url, **options)

        monkeypatch.setattr(client._session, "request", with_stub)
        return await client.complete([20], 3, on_output=events.append)

    with StubEngine() as engine:
        return ask(engine.url, ask_it), engine.seen[-1].json


def test_tokens_are_those_that_the_engine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every event with output is timed, one without text as well."""
    events: list[float] = []
    answer, asked = complete(monkeypatch, {"tokens": 5, "blank": True}, events)
    assert (answer.prompt_tokens, answer.output_tokens) == (PROMPT_TOKENS, 5)
    assert answer.sent_s < answer.first_s <= answer.last_s
    assert [answer.first_s, answer.last_s] == [events[0], events[-1]]
    assert len(events) == 6  # the last one has the finish reason
    assert asked["ignore_eos"] is True and asked["max_tokens"] == 3
    assert asked["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    ("stub", "said"),
    [
        ({"status": 429}, "answers /v1/completions with an error: 429"),
        ({"error": True}, "with an error: .*the engine failed"),
        ({"usage": False}, "the engine's usage: prompt_tokens is missing"),
        ({"tokens": 0, "usage": False}, "prompt_tokens is missing|without output"),
        ({"cut": 1}, "cannot be reached"),
    ],
)
def test_completions_that_fail(
    monkeypatch: pytest.MonkeyPatch, stub: dict[str, Any], said: str
) -> None:
    """End the measurement with one sentence."""
    with pytest.raises(InputError, match=said):
        complete(monkeypatch, stub, [])


def test_a_chat_is_asked_in_words() -> None:
    """As hosted models want it; its first event, which has only a role, is no output."""
    events: list[float] = []

    async def chat(url: str) -> tuple[Any, Any]:
        async with ChatClient(Target(url, model="small")) as engine:
            prompts = RandomPrompts(0)
            await prompts.learn(engine)
            asked = "four words of text"
            return await engine.complete(asked, 3, on_output=events.append), engine.model

    with PaidEngine() as engine:
        answer, model = asyncio.run(chat(engine.url))
        (asked,) = [one for one in engine.requests if "four words" in str(one)]
    assert model == "small" == asked["model"] and "ignore_eos" not in asked
    assert asked["messages"] == [{"role": "user", "content": "four words of text"}]
    assert len(events) == answer.output_tokens == 3
    assert (answer.first_s, answer.last_s) == (events[0], events[-1])


@pytest.mark.parametrize(
    ("mode", "reason", "status"),
    [
        ("endless", "streams more than the 3 tokens", None),
        ("garbage", "broke its answer off in an event|gives no finish reason", None),
        ("cut", "cannot be reached", None),
        ("uncounted", "prompt_tokens is missing", None),
        ("telltale", "401", 401),
        ("full", "429", 429),
    ],
)
def test_a_stream_that_is_none(mode: str, reason: str, status: int | None) -> None:
    """One sentence, in which an engine cannot repeat the key; with the status of a refusal, so that
    a full engine is known from a broken one."""
    with PaidEngine(mode) as engine, pytest.raises(InputError, match=reason) as caught:
        ask(engine.url, lambda client: client.complete([20] * 9, 3), key="sk-secret")
    assert "sk-secret" not in str(caught.value) and len(str(caught.value)) < 400
    assert getattr(caught.value, "status", None) == status
