"""Cases of the earlier project's dialects that are held here, with their inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from jaxserve.gateway.dialects.engine_reader import EngineReader
from jaxserve.gateway.dialects.routes import AnswerTranslator, translate
from jaxserve.gateway.http.json_http import json_object
from tests.gateway.dialects.earlier.cases import ANSWERS, REQUESTS, STREAMS
from tests.gateway.dialects.earlier.parts import ASKS, GOOGLE, POLICY, TEN_FOUR


def holds(found: Any, expected: Any) -> bool:
    """Whether something is as expected, or an object has more fields than that; ``...`` is anything
    that is not empty."""
    if expected is ...:
        return bool(found)
    if isinstance(expected, Mapping):
        return isinstance(found, Mapping) and all(
            holds(found.get(name), value) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(holds, found, expected))
        )
    return found == expected


def spoken(path: str, body: Mapping[str, Any]) -> tuple[dict[str, Any], AnswerTranslator]:
    """The engine's request, and the way back."""
    sent = orjson.dumps(body)
    chat, answerer = translate(
        path, b"", json_object(sent), answer_id="id1", unix_s=0, policy=POLICY
    )
    return chat.request, answerer


@pytest.mark.parametrize(("case", "path", "body", "expected"), REQUESTS)
def test_requests(case: str, path: str, body: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the engine is told; no template is switched but by who asks for it."""
    named = body if path == GOOGLE else {"model": "m", **body}
    request, _ = spoken(path, named)
    for name, value in expected.items():
        assert request.get(name) == value, (case, name)
    assert request.get("chat_template_kwargs") == body.get("chat_template_kwargs"), case


@pytest.mark.parametrize(("case", "path", "message", "finish", "usage", "expected"), ANSWERS)
def test_answers(
    case: str,
    path: str,
    message: dict[str, Any],
    finish: str,
    usage: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    """What the client reads."""
    _, answerer = spoken(path, ASKS[path])
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}
    completion = EngineReader("id1").whole({**answer, "usage": usage})
    found = json.loads(answerer.whole(completion))
    assert holds(found, expected), (case, found)


@pytest.mark.parametrize(("case", "path", "deltas", "finish", "expected"), STREAMS)
def test_streams(
    case: str,
    path: str,
    deltas: list[dict[str, Any]],
    finish: str,
    expected: list[dict[str, Any]],
) -> None:
    """What the client reads in events."""
    body = ASKS[path] if path == GOOGLE else {**ASKS[path], "stream": True}
    _, answerer = spoken(path, body)
    reader, writer = EngineReader("id1"), answerer.events()
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": TEN_FOUR}
    data = b"".join(writer.feed(reader.feed(chunk)) for chunk in (*chunks, end)) + writer.end()
    lines = [line for line in data.splitlines() if line.startswith(b"data: {")]
    events = iter([json.loads(line.removeprefix(b"data: ")) for line in lines])
    for one in expected:
        assert any(holds(event, one) for event in events), (case, one)
