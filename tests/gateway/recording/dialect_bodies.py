"""Requests of each dialect that say the same, as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from tests.gateway.recording.session_agent import Agent

DATA = "iVBORw0KGgo="
IMAGE = f"data:image/png;base64,{DATA}"
SCHEMA = {
    "type": "object",
    "properties": {"place": {"type": "string"}},
    "required": ["place"],
}


def user(text: str) -> dict[str, Any]:
    """What is asked, as all but Google have it."""
    return {"role": "user", "content": text}


@dataclass(frozen=True)
class Body:
    """A dialect's words."""

    path: str
    counts: str | None
    """the route that counts tokens; None where there is none."""
    ask: Mapping[str, Any]
    """a question of one word, ``look``."""
    temperature: Mapping[str, Any]
    """what sets it to 1."""
    seen: Any
    """a question with an image."""
    schema: Mapping[str, Any]
    """what asks for an object of the schema."""

    def history(self, said: str) -> dict[str, Any]:
        """The question with an image, an answer, and another question."""
        if "contents" in self.ask:
            answer = {"role": "model", "parts": [{"text": said}]}
            again = {"role": "user", "parts": [{"text": "and now?"}]}
            return {"contents": [self.seen, answer, again]}
        turns = [self.seen, {"role": "assistant", "content": said}, user("and now?")]
        return {"input" if "input" in self.ask else "messages": turns}

    def first(self) -> dict[str, Any]:
        """The question with an image."""
        name = next(name for name in ("contents", "input", "messages") if name in self.ask)
        return {name: [self.seen]}

    def say(self, agent: Agent, *fields: Mapping[str, Any], reply: str = "ok") -> httpx.Response:
        """Asks in a session; the engine answers with a text."""
        body: dict[str, Any] = dict(self.ask)
        for more in fields:
            body |= more
        headers = {**agent.headers, "x-stub": orjson.dumps({"reply": reply}).decode()}
        return agent.gateway.http.post(self.path, json=body, headers=headers)


_WANTED = {"type": "json_schema", "name": "output", "schema": SCHEMA}
_CHAT_IMAGE = {"type": "image_url", "image_url": {"url": IMAGE}}
_SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
_TEXT = {"type": "text", "text": "what?"}

BODIES: Mapping[str, Body] = {
    "chat": Body(
        "/v1/chat/completions",
        None,
        {"model": "stub", "messages": [user("look")]},
        {"temperature": 1},
        {"role": "user", "content": [_TEXT, _CHAT_IMAGE]},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "output", "schema": SCHEMA},
            }
        },
    ),
    "messages": Body(
        "/v1/messages",
        "/v1/messages/count_tokens",
        {"model": "stub", "max_tokens": 50, "messages": [user("look")]},
        {"temperature": 1},
        {"role": "user", "content": [_TEXT, {"type": "image", "source": _SOURCE}]},
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
    "responses": Body(
        "/v1/responses",
        "/v1/responses/input_tokens",
        {"model": "stub", "input": [user("look")]},
        {"temperature": 1},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "what?"},
                {"type": "input_image", "image_url": IMAGE},
            ],
        },
        {"text": {"format": _WANTED}},
    ),
    "google": Body(
        "/v1beta/models/stub:generateContent",
        "/v1beta/models/stub:countTokens",
        {"contents": [{"role": "user", "parts": [{"text": "look"}]}]},
        {"generationConfig": {"temperature": 1}},
        {
            "role": "user",
            "parts": [
                {"text": "what?"},
                {"inlineData": {"mimeType": "image/png", "data": DATA}},
            ],
        },
        {
            "generationConfig": {
                "responseMimeType": "application/json",
                "responseJsonSchema": SCHEMA,
            }
        },
    ),
}
