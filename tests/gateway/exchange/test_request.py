"""Bodies: understood, or refused before an engine hears of them."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.anthropic_messages import MESSAGES
from jaxserve.gateway.dialects.openai_chat import CHAT
from jaxserve.gateway.exchange.request import parse_request, with_usage
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.stub_engine import StubEngine
from tests.patience import PATIENCE_S

# The body keeps greater whole numbers too; in ``fields`` they are floats.
WHOLE = st.integers(-(2**63), 2**64 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | WHOLE | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    body=st.dictionaries(st.text(), JSON, max_size=5),
    stream=st.booleans(),
    blank=st.booleans(),
    empty=st.sampled_from([None, (None,), ({},)]),
)
def test_only_one_field_is_ever_added(
    body: dict[str, Any], stream: bool, blank: bool, empty: tuple[Any] | None
) -> None:
    """The engine reads the client's own body and, of a stream, a wish for usage, which empty
    ``stream_options`` do not prevent."""
    body = {**body, "stream": stream}
    if empty is not None:
        body["stream_options"] = empty[0]
    content = json.dumps(body).encode() + (b" \n" if blank else b"")
    found = parse_request(content, [])
    assert found.fields == body and found.body == content and found.streamed == stream
    sent, wished = with_usage(found, CHAT)
    assert wished == (stream and body.get("stream_options") in (None, {}))
    added = {"stream_options": {"include_usage": True}} if wished else {}
    assert json.loads(sent) == {**body, **added}
    if not wished:
        assert sent == content
    assert with_usage(found, MESSAGES) == (content, False)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"\xff", b"{}x", b"[" * 5000])
def test_what_is_no_request(content: bytes, engine: StubEngine, gateway: RunningGateway) -> None:
    """400 in the dialect's form; the engine is not bothered."""
    for path, kind in (("/v1/chat/completions", "code"), ("/v1/messages", "type")):
        answer = gateway.http.post(path, content=content)
        assert answer.status_code == 400
        assert kind in answer.json()["error"]
    assert not engine.seen
    assert {record["reason"] for record in gateway.records(2)} == {"bad_request"}


@pytest.mark.parametrize("value", ["", "x", "1.5", "99999999999", "--1", "1e3"])
def test_a_priority_that_is_none(value: str) -> None:
    """In a header it is the gateway's to refuse."""
    with pytest.raises(RequestError) as refused:
        parse_request(b"{}", [(b"x-priority", value.encode())])
    assert refused.value.status == 400


@pytest.mark.parametrize("value", ["x", 1.5, None, True, 2**40, [1]])
def test_a_priority_field_that_is_none(value: object) -> None:
    """In the body it is the engine's: it passes and counts as 0."""
    assert parse_request(json.dumps({"priority": value}).encode(), []).priority == 0


@pytest.mark.parametrize(
    ("asked", "parallel"),
    [
        ({"n": 2}, True),
        ({"n": 1, "prompt": "a"}, False),
        ({"prompt": ["a", "b"]}, True),
        ({"prompt": ["a"]}, False),
        ({"prompt": [1, 2, 3]}, False),
        ({"prompt": [[1, 2], [3]]}, True),
        ({"prompt": []}, False),
    ],
)
def test_several_outputs(asked: dict[str, Any], parallel: bool) -> None:
    """Requests whose events belong to several outputs are known as such."""
    assert parse_request(json.dumps(asked).encode(), []).parallel == parallel


def test_a_body_that_is_too_large(engine: StubEngine, start: Start) -> None:
    """413, whether its length is announced or not."""
    gateway = start([engine], max_body_bytes=2000)
    large = {"prompt": "x" * 3000}
    announced = gateway.post(large)
    chunks = (b'{"prompt": "', *[b"x" * 1000] * 3, b'"}')
    streamed = gateway.http.post("/v1/messages", content=iter(chunks))
    for answer in (announced, streamed):
        assert answer.status_code == 413
        assert "at most 2000 bytes" in answer.json()["error"]["message"]
    assert streamed.json()["error"]["type"] == "request_too_large"
    assert gateway.post().status_code == 200 and len(engine.seen) == 1


def test_a_body_that_does_not_end(engine: StubEngine, start: Start) -> None:
    """A client that sends half of it is told so; one that leaves is gone."""
    gateway = start([engine], body_s=0.2)
    half = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as client:
        client.sendall(half)
        said = b""
        while b"body_timeout" not in said:
            part = client.recv(65536)
            assert part
            said += part
        assert said.startswith(b"HTTP/1.1 408 ")
    assert gateway.records(1)[0]["reason"] == "body_timeout"
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as client:
        client.sendall(half)
    assert gateway.records(2)[1]["reason"] in ("client_left", "body_timeout")
    assert not engine.seen
