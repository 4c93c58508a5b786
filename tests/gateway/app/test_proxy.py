"""A request's way through the gateway, with real sockets on both sides."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import Leaver, RunningGateway
from tests.gateway.knob_engines import PluginEngine
from tests.gateway.stub_engine import PROMPT_TOKENS, RawServer, StubEngine, nobody_there, stream_of
from tests.patience import PATIENCE_S, wait_until

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")


async def engine_events(path: str, asked: dict) -> bytes:
    return b"".join([part async for part in stream_of(path, asked, None)])


@pytest.mark.parametrize("path", PATHS)
def test_an_answer_passes_byte_for_byte(
    path: str, engine: StubEngine, gateway: RunningGateway
) -> None:
    """The client gets what the engine answers, and the engine gets what the client sent."""
    body = {"model": "stub", "stub": {"tokens": 5, "headers": {"x-of-the-engine": "1"}}}
    direct = httpx.post(engine.url + path, json=body)
    through = gateway.http.post(path, json=body, params={"beta": "true"})
    assert through.content == direct.content
    assert through.headers["x-of-the-engine"] == "1"
    first, second = engine.seen
    assert second.body == first.body and second.query == "beta=true"
    (record,) = gateway.records(1)
    assert (record["outcome"], record["status"], record["engine"]) == ("completed", 200, "vllm-0")
    assert (record["prompt_tokens"], record["output_tokens"]) == (PROMPT_TOKENS, 5)
    assert through.headers["x-gateway-request-id"] == record["id"]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_passes_byte_for_byte(
    path: str, engine: StubEngine, gateway: RunningGateway
) -> None:
    """The client sees exactly the events that it asked for; the record has the engine's counts."""
    body = {"model": "stub", "stream": True, "stub": {"tokens": 5}}
    through = gateway.http.post(path, json=body)
    assert through.headers["content-type"].startswith("text/event-stream")
    assert through.content == asyncio.run(engine_events(path, body))
    (record,) = gateway.records(1)
    assert record["outcome"] == "completed" and record["streamed"]
    assert (record["prompt_tokens"], record["output_tokens"]) == (PROMPT_TOKENS, 5)
    assert record["token_events"] == 5
    times = [record[f"{name}_s"] for name in ("arrival", "admitted", "first_byte", "first_token")]
    times += [record["last_token_s"], record["ended_s"]]
    assert times == sorted(times)


def test_every_event_leaves_when_it_arrives(engine: StubEngine, gateway: RunningGateway) -> None:
    """The engine makes its next token only after the client has read the one before."""
    body = {"model": "stub", "stream": True, "stub": {"tokens": 20, "gated": True}}
    with gateway.http.stream("POST", PATHS[0], json=body) as answer:
        lines = answer.iter_lines()
        assert "assistant" in next(lines)
        for place in range(20):
            engine.seen[0].allow(1)
            assert next(lines) == ""
            assert f"t{place} " in next(lines)
        assert [line for line in lines if line][-1] == "data: [DONE]"


@pytest.mark.parametrize(
    ("options", "tokens"),
    [(None, 4), ({}, 4), ({"include_usage": True}, 4), ({"include_usage": False}, None)],
    ids=str,
)
def test_usage_is_as_the_client_chose(
    options: dict[str, Any] | None, tokens: int | None, gateway: RunningGateway
) -> None:
    """A client gets usage where it asks for it; empty options say nothing of it, so that the tokens
    are counted, as without the field."""
    body = {"model": "stub", "stream": True, "stub": {"tokens": 4}, "stream_options": options}
    assert gateway.post(body).content == asyncio.run(engine_events(PATHS[0], body))
    (record,) = gateway.records(1)
    assert record["output_tokens"] == tokens


def test_only_the_wish_for_usage_is_added(engine: StubEngine, gateway: RunningGateway) -> None:
    """The engine gets the client's bytes with one more field at the end."""
    text = b'{"model": "stub",  "stream": true, "seed": 12345678901234567890123 }\n'
    gateway.http.post(PATHS[0], content=text)
    assert engine.seen[0].body == text.rstrip()[:-1] + (
        b',"stream_options":{"include_usage":true}}'
    )


def test_an_engine_error_passes(gateway: RunningGateway) -> None:
    """Status and body of an engine's refusal reach the client, and the record says so."""
    for status in (400, 404, 429, 500, 503):
        answer = gateway.post({"stub": {"status": status, "headers": {"retry-after": "9"}}})
        assert answer.status_code == status
        assert answer.json() == {"error": {"message": "as asked"}}
        assert answer.headers["retry-after"] == "9"
    records = gateway.records(5)
    reasons = ["engine_4xx", "engine_4xx", "engine_429", "engine_5xx", "engine_5xx"]
    assert [record["reason"] for record in records] == reasons
    assert [record["outcome"] for record in records] == [
        "rejected" if reason == "engine_429" else "failed" for reason in reasons
    ]


def test_an_error_inside_a_stream_passes(gateway: RunningGateway) -> None:
    """vLLM fails inside a stream with an event; the request counts as failed."""
    answer = gateway.post({"stream": True, "stub": {"error": True}})
    assert '"the engine failed"' in answer.text and answer.text.endswith("[DONE]\n\n")
    (record,) = gateway.records(1)
    assert (record["outcome"], record["reason"]) == ("failed", "engine_error")


@pytest.mark.parametrize(
    ("gated", "stream"), [(True, True), (True, False), ("head", True)], ids=str
)
def test_a_client_that_leaves_frees_the_engine(
    gated: object, stream: bool, engine: StubEngine, gateway: RunningGateway
) -> None:
    """The engine sees that nobody reads any more, inside an answer and before it."""
    client = Leaver(gateway.port, {"stream": stream, "stub": {"gated": gated}})
    engine.wait_for(1)
    if stream and gated is True:
        assert b"assistant" in client.socket.recv(65536)
    client.leave()
    wait_until(lambda: engine.seen[0].outcome == "left", "the engine's notice")
    (record,) = gateway.records(1)
    assert (record["outcome"], record["reason"]) == ("cancelled", "client_left")
    assert gateway.state()["pools"]["default"]["running"] == 0


def test_a_client_that_leaves_the_queue(engine: StubEngine, start: Start) -> None:
    """Its request never reaches the engine, and the queue is as if it had not been there."""
    gateway = start([engine], ",cap=1", look_ahead=0)
    body = {"model": "stub", "stub": {"gated": True}}
    with ThreadPoolExecutor() as pool:
        first = pool.submit(gateway.post, body)
        engine.wait_for(1)
        client = Leaver(gateway.port, body)
        gateway.wait_for_queue(1)
        client.leave()
        gateway.wait_for_queue(0)
        engine.seen[0].allow()
        assert first.result().status_code == 200
    assert len(engine.seen) == 1
    assert {record["outcome"] for record in gateway.records(2)} == {"completed", "cancelled"}


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_that_breaks_ends_with_an_error(path: str, gateway: RunningGateway) -> None:
    """All whole events arrive, then one error in the dialect's form, and the answer is complete."""
    body = {"model": "stub", "stream": True, "stub": {"tokens": 9, "cut": 4}}
    answer = gateway.http.post(path, json=body)
    *events, error, rest = answer.text.split("\n\n")
    assert rest == "" and "t3 " in events[-1]
    data = json.loads(error.rpartition("data: ")[2])
    said = data.get("error", data)
    assert said["message"] == "engine vllm-0 broke the connection"
    if path == "/v1/messages":
        assert error.startswith("event: error\n") and data["type"] == "error"
    elif path == "/v1/responses":
        assert data["type"] == "error" and data["sequence_number"] == len(events)
    else:
        assert said["code"] == "engine_broke"
    (record,) = gateway.records(1)
    assert (record["outcome"], record["reason"]) == ("failed", "engine_broke")
    assert (record["status"], record["token_events"]) == (200, 4)


def test_a_stream_that_breaks_at_once_has_a_status(gateway: RunningGateway) -> None:
    """Before the first event there is time for a proper error."""
    body = {"model": "stub", "stream": True, "stub": {"cut": 0}}
    answer = gateway.http.post("/v1/completions", json=body)
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "engine_broke"


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (b"", "engine_broke"),
        (b"\x00\x01nonsense\r\n\r\n", "engine_garbage"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\n\r\n", "engine_garbage"),
        (b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n", "engine_garbage"),
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n", "engine_refused_key"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}", "engine_broke"),
    ],
)
def test_an_engine_that_talks_nonsense(says: bytes, reason: str, start: Start) -> None:
    """One clear error, nothing sent twice, and no address of the engine in it."""
    with RawServer(says) as raw:
        gateway = start([f"vllm={raw.url}"])
        answer = gateway.post()
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == reason
        assert raw.url.removeprefix("http://") not in answer.text + str(answer.headers)
        assert raw.requests == 1
        (record,) = gateway.records(1)
        assert (record["outcome"], record["reason"]) == ("failed", reason)


def test_garbage_inside_a_stream_passes_unread(start: Start) -> None:
    """Bytes that are no event of the dialect reach the client as they came, and the request counts
    as failed."""
    body = b"data: {broken\n\ndata: [1]\n\n: comment\n\ndata: {}\n\nno end"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    with RawServer(head % len(body) + body) as raw:
        gateway = start([f"sglang={raw.url}"])
        assert gateway.post({"stream": True}).content == body
        (record,) = gateway.records(1)
        assert (record["outcome"], record["reason"]) == ("failed", "engine_garbage")
        assert record["output_tokens"] is None


def test_another_engine_is_tried_only_if_none_has_begun(engine: StubEngine, start: Start) -> None:
    """A refused connection costs nothing; a lost one may have cost a whole computation."""
    with nobody_there() as gone:
        gateway = start([f"vllm={gone}", engine])
        for _ in range(3):
            assert gateway.post().status_code == 200
    assert len(engine.seen) == 3
    assert [record["attempts"] for record in gateway.records(3)] == [2, 1, 1]
    with RawServer() as breaking:
        gateway = start([f"vllm={breaking.url}", engine])
        assert gateway.post().status_code == 502
        assert breaking.requests == 1 and len(engine.seen) == 3


def test_no_engine_at_all(start: Start) -> None:
    """Each is tried once; then the client hears so."""
    with StubEngine() as one, StubEngine() as two:
        dead = [f"vllm={one.url}", f"vllm={two.url}"]
    gateway = start(dead)
    answer = gateway.post()
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert answer.json()["error"]["code"] == "engine_unreachable"
    (record,) = gateway.records(1)
    assert record["attempts"] == 2
    assert gateway.http.get("/health").status_code == 503
    assert 'engine_up{engine="vllm-0"} 0.0' in gateway.control.get("/metrics").text


def test_an_engine_that_comes_back_is_used_again(start: Start) -> None:
    """Without a restart of the gateway, and without a request that it costs."""
    with StubEngine() as engine:
        gateway = start([engine])
        assert gateway.post().status_code == 200
    assert gateway.post().status_code == 503
    with StubEngine(engine.port):
        assert gateway.post().status_code == 200


@pytest.mark.parametrize(
    ("limit", "stub", "stream", "reason"),
    [
        ("first_byte_s", {"gated": "head"}, True, "first_byte_timeout"),
        ("first_byte_s", {"gated": True}, False, "first_byte_timeout"),
        ("idle_s", {"gated": True}, True, "idle_timeout"),
        ("total_s", {"gated": True}, True, "total_timeout"),
    ],
)
def test_what_takes_too_long_is_ended(
    limit: str, stub: dict, stream: bool, reason: str, engine: StubEngine, start: Start
) -> None:
    """The client gets one error, the engine is left."""
    gateway = start([engine], **{limit: 0.2})
    answer = gateway.post({"stream": stream, "stub": stub})
    # Where a stream has begun, its error comes inside.
    assert answer.status_code == (200 if "assistant" in answer.text else 504)
    last = answer.text.rpartition("data: ")[2]
    assert json.loads(last)["error"]["code"] == reason
    (record,) = gateway.records(1)
    assert (record["outcome"], record["reason"]) == ("failed", reason)
    wait_until(lambda: engine.seen[0].outcome == "left", "the engine's notice")


def test_an_engine_that_cannot_be_connected_to(engine: StubEngine, start: Start) -> None:
    """A connection that is not made in time counts as one that is refused."""
    # A listener whose queue is full answers to no further connection.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        gateway = start([f"vllm=http://127.0.0.1:{address[1]}", engine], connect_s=0.3)
        assert gateway.post().status_code == 200
        assert gateway.records(1)[0]["attempts"] == 2
        for filler in fillers:
            filler.close()


def test_two_gateways_in_a_row(engine: StubEngine, gateway: RunningGateway, start: Start) -> None:
    """A gateway can be an engine of another one: each asks for what it needs."""
    outer = start([f"vllm={gateway.url}"])
    asked = {"model": "stub", "stream": True, "stub": {"tokens": 4}}
    assert outer.post(asked).content == asyncio.run(engine_events(PATHS[0], asked))
    assert outer.records(1)[0]["output_tokens"] == 4


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_wall_clock_that_jumps(
    jump_s: float, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a stream and of a lease: both go on, and the window and the record count the
    time that passed."""
    wall = time.time
    with PluginEngine() as engine:
        gateway = start([engine], idle_s=PATIENCE_S)
        since_s = gateway.control.get("/control/window").json()["until_s"]
        command = {"lease_s": 600.0, "knobs": {"batch_cap": 8}}
        gateway.control.put("/control/knobs", json=command).raise_for_status()
        began_s = time.monotonic()
        body = {"stream": True, "stub": {"tokens": 3, "gated": True}}
        with gateway.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
            engine.seen[0].allow()
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        (record,) = gateway.records(1)
        window = gateway.control.get("/control/window", params={"since": since_s}).json()
        took_s = time.monotonic() - began_s
        knobs = gateway.control.get("/control/knobs").json()
        assert knobs["mode"] == "leased" and engine.now("batch_cap") == 8
        assert 600.0 - took_s - 1.0 <= knobs["lease_left_s"] <= 600.0
        assert gateway.post().status_code == 200
        late, soon = gateway.records(2)[-1]["arrival_unix_s"], record["arrival_unix_s"]
    assert record["outcome"] == "completed"
    assert 0 <= record["first_token_s"] - record["arrival_s"] <= took_s
    assert record["first_token_s"] <= record["last_token_s"] <= record["ended_s"]
    assert window["complete"] and window["classes"]["default"]["completed"] == 1
    assert 0 <= window["ttft_p99_s"] <= took_s
    assert abs(late - soon - jump_s) < PATIENCE_S
