"""What official clients can send is carried, refused, or said to be without effect."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic.alias_generators import to_camel

from jaxserve.gateway.dialects.routes import translate
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import json_object

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rollouts.md"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object"}
OWNED, DECLARED = {"name": "f", "input_schema": SCHEMA}, {"functionDeclarations": [{"name": "f"}]}
CALLABLE = {"type": "function", "function": {"name": "f"}}

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "google": "/v1beta/models/m:generateContent",
}
BASES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": HELLO, "stream": True, "tools": [CALLABLE]},
    "messages": {"model": "m", "messages": HELLO, "max_tokens": 9, "tools": [OWNED]},
    "responses": {"model": "m", "input": "hello", "tools": [{"type": "function", "name": "f"}]},
    "google": {"contents": [{"parts": [{"text": "hello"}]}], "tools": [DECLARED]},
}
SAMPLES: dict[str, dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("request_fields.json").read_text(encoding="utf-8")
)
"""By dialect a value for each field of a request that asks for something else than leaving it out;
``refused``, or ``read``."""
BESIDE = (
    # Anthropic's headers.
    "betas",
    "workspace_id",
    # What Google's client does itself.
    "http_options",
    "should_return_http_response",
    "automatic_function_calling",
    "automatic_continuation",
)
"""Arguments of clients that are in no body."""
TOP = (
    "contents",
    "cachedContent",
    "continuationToken",
    "labels",
    "modelArmorConfig",
    "safetySettings",
    "serviceTier",
    "store",
    "systemInstruction",
    "toolConfig",
    "tools",
)
"""Fields that Google's client puts beside ``generationConfig``, and not in it."""


def known_to_clients() -> dict[str, set[str]]:
    """Fields of bodies, by dialect, as the installed clients have them."""
    # Three thousand modules, which no other worker has to load while it collects the tests.
    from anthropic.types.beta.message_create_params import (
        MessageCreateParamsStreaming as BetaMessage,
    )
    from anthropic.types.message_create_params import MessageCreateParamsStreaming as Message
    from google.genai import types as google
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
    from openai.types.responses.input_token_count_params import InputTokenCountParams
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    responses = (ResponseCreateParamsStreaming, InputTokenCountParams)
    configs = google.GenerateContentConfig.model_fields, google.GenerationConfig.model_fields
    found = {
        "chat": keys(CompletionCreateParamsStreaming),
        "messages": keys(Message) | keys(BetaMessage),
        "responses": set().union(*map(keys, responses)),
        "google": set().union(*configs),
    }
    found = {dialect: names - {*BESIDE} for dialect, names in found.items()}
    return found | {"google": {to_camel(name) for name in found["google"]}}


def keys(params: Any) -> set[str]:
    """Those of a typed dictionary."""
    return {*params.__required_keys__, *params.__optional_keys__}


def heard(dialect: str, more: Mapping[str, Any]) -> Any:
    """What the engine is told, and what is kept for the answer."""
    body = {**BASES[dialect], **more}
    sent = orjson.dumps(body)
    chat, _ = translate(PATHS[dialect], b"", json_object(sent), answer_id="id1", unix_s=0)
    return chat.request, chat.noted, chat.streamed


def fate(dialect: str, name: str, value: Any) -> str:
    """What becomes of a field."""
    more = {name: value}
    if dialect == "google" and name not in TOP:
        # A schema needs the type that it is of.
        of_schema = {"responseMimeType": "application/json"} if "Schema" in name else {}
        more = {"generationConfig": of_schema | more}
    try:
        changed = heard(dialect, more) != heard(dialect, {})
    except RequestError as refused:
        assert refused.status == 400
        assert str(refused).startswith(f"{name} ") and refused.reason == "not_supported"
        return "refused"
    return "carried" if changed else "without effect"


def without_effect() -> dict[str, set[str]]:
    """The table of the page."""
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (chat|messages|responses|google) \| (`.+?`) \|", page, re.MULTILINE)
    found: dict[str, set[str]] = {dialect: set() for dialect in PATHS}
    for dialect, names in rows:
        told = re.findall(r"`(\w+)`", names)
        assert not found[dialect] & {*told}
        found[dialect] |= {*told}
    return found


@pytest.mark.parametrize("dialect", PATHS)
def test_every_field_of_the_clients_has_a_fate(dialect: str) -> None:
    """A new version of a client shows its new fields here: each needs a sample, and to be carried,
    refused or listed."""
    samples = SAMPLES[dialect]
    assert known_to_clients()[dialect] <= {*samples["refused"], *samples["read"]}
    assert {fate(dialect, *field) for field in samples["refused"].items()} == {"refused"}
    fates = {name: fate(dialect, name, value) for name, value in samples["read"].items()}
    assert {"carried", "without effect"} >= {*fates.values()}
    idle = {name for name, one in fates.items() if one == "without effect"}
    assert idle == without_effect()[dialect]
