"""What official clients can send is carried, refused, or said to be without effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from anthropic.types.beta.message_create_params import (
    MessageCreateParamsStreaming as BetaMessage,
)
from anthropic.types.message_create_params import MessageCreateParamsStreaming as Message
from google.genai import types as google
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic.alias_generators import to_camel

from jaxserve.gateway.dialects.routes import translate
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import json_object

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rollouts.md"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object"}
CALLABLE = {"type": "function", "function": {"name": "f"}}
WORDED = {"type": "json_schema", "name": "n", "schema": SCHEMA}

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "google": "/v1beta/models/m:generateContent",
}
BASES: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": HELLO, "stream": True, "tools": [CALLABLE]},
    "messages": {
        "model": "m",
        "messages": HELLO,
        "max_tokens": 9,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
    "responses": {"model": "m", "input": "hello", "tools": [{"type": "function", "name": "f"}]},
    "google": {
        "contents": [{"parts": [{"text": "hello"}]}],
        "tools": [{"functionDeclarations": [{"name": "f"}]}],
    },
}
SAMPLES: dict[str, dict[str, Any]] = {
    "chat": {
        "audio": {"voice": "a", "format": "wav"},
        "frequency_penalty": 0.5,
        "function_call": "auto",
        "functions": [{"name": "f"}],
        "logit_bias": {"1": 5},
        "logprobs": True,
        "max_completion_tokens": 9,
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "bye"}],
        "metadata": {"a": "b"},
        "modalities": ["audio"],
        "model": "other",
        "moderation": {"model": "a"},
        "n": 2,
        "parallel_tool_calls": False,
        "prediction": {"type": "content", "content": "a"},
        "presence_penalty": 0.5,
        "prompt_cache_key": "a",
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_retention": "24h",
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "safety_identifier": "a",
        "seed": 1,
        "service_tier": "flex",
        "stop": ["a"],
        "store": True,
        "stream": False,
        "stream_options": {"include_usage": True},
        "temperature": 0.5,
        "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "g"}}],
        "top_logprobs": 2,
        "top_p": 0.5,
        "user": "a",
        "verbosity": "low",
        "web_search_options": {"search_context_size": "low"},
    },
    "messages": {
        "billing_policy": {"type": "billing_policy", "bill_to": "user_profile"},
        "cache_control": {"type": "ephemeral"},
        "compaction": {"type": "enabled"},
        "container": "a",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"previous_message_id": "msg_1"},
        "fallback_credit_token": "a",
        "fallbacks": [{"model": "other"}],
        "inference_geo": "us",
        "max_tokens": 8,
        "mcp_servers": [{"type": "url", "url": "https://example.com", "name": "a"}],
        "messages": [{"role": "user", "content": "bye"}],
        "metadata": {"user_id": "a"},
        "model": "other",
        "output_config": {"effort": "low"},
        "service_tier": "standard_only",
        "speed": "fast",
        "stop_sequences": ["a"],
        "stream": True,
        "system": "a",
        "thinking": {"type": "disabled"},
        "thread": {"type": "create"},
        "tool_choice": {"type": "any"},
        "tools": [{"name": "g", "input_schema": SCHEMA}],
        "user_profile_id": "a",
    },
    "responses": {
        "access_programs": {"a": "b"},
        "background": True,
        "background_options": {"completion_window": "2h"},
        "context_management": [{"type": "compaction", "compact_threshold": 9}],
        "conversation": "conv_1",
        "image": {"context_compression": "enabled"},
        "include": ["reasoning.encrypted_content"],
        "input": "bye",
        "instructions": "a",
        "max_output_tokens": 9,
        "max_tool_calls": 9,
        "metadata": {"a": "b"},
        "model": "other",
        "moderation": {"model": "a"},
        "parallel_tool_calls": False,
        "personality": "friendly",
        "previous_response_id": "resp_1",
        "prompt": {"id": "a"},
        "prompt_cache_key": "a",
        "prompt_cache_options": {"mode": "explicit"},
        "prompt_cache_retention": "24h",
        "reasoning": {"effort": "low"},
        "safety_identifier": "a",
        "service_tier": "flex",
        "store": True,
        "stream": True,
        "stream_options": {"include_obfuscation": True},
        "temperature": 0.5,
        "text": {"format": WORDED},
        "tool_choice": "required",
        "tools": [{"type": "function", "name": "g"}],
        "top_logprobs": 2,
        "top_p": 0.5,
        "truncation": "auto",
        "user": "a",
    },
    "google": {
        "audioTimestamp": True,
        "audioTranscriptionConfig": {"a": "b"},
        "cachedContent": "cachedContents/a",
        "candidateCount": 2,
        "continuationToken": "a",
        "enableAffectiveDialog": True,
        "enableEnhancedCivicAnswers": True,
        "frequencyPenalty": 0.5,
        "generationOutputConfig": {"a": "b"},
        "imageConfig": {"aspectRatio": "1:1"},
        "labels": {"a": "b"},
        "logprobs": 2,
        "maxOutputTokens": 9,
        "mediaResolution": "MEDIA_RESOLUTION_LOW",
        "modelArmorConfig": {"promptTemplateName": "a"},
        "modelSelectionConfig": {"featureSelectionPreference": "BALANCED"},
        "presencePenalty": 0.5,
        "responseFormat": [{"a": "b"}],
        "responseJsonSchema": SCHEMA,
        "responseLogprobs": True,
        "responseMimeType": "application/json",
        "responseModalities": ["AUDIO"],
        "responseSchema": SCHEMA,
        "routingConfig": {"a": "b"},
        "safetySettings": [{"category": "a", "threshold": "b"}],
        "seed": 1,
        "serviceTier": "flex",
        "speechConfig": {"a": "b"},
        "stopSequences": ["a"],
        "store": True,
        "systemInstruction": {"parts": [{"text": "a"}]},
        "temperature": 0.5,
        "thinkingConfig": {"includeThoughts": True},
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
        "tools": [{"functionDeclarations": [{"name": "g"}]}],
        "topK": 5,
        "topP": 0.5,
        "translationConfig": {"a": "b"},
    },
}
"""A value for each field of a request that asks for something else than leaving it out."""
REFUSED = {
    "chat": "audio function_call functions modalities moderation prediction web_search_options",
    "messages": "compaction container mcp_servers thread",
    "responses": "background background_options conversation moderation personality"
    " previous_response_id prompt top_logprobs",
    "google": "audioTimestamp audioTranscriptionConfig cachedContent continuationToken"
    " enableAffectiveDialog generationOutputConfig imageConfig logprobs modelArmorConfig"
    " modelSelectionConfig responseFormat responseLogprobs responseModalities routingConfig"
    " speechConfig translationConfig",
}
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


def fate(dialect: str, name: str) -> str:
    """What becomes of a field."""
    more = {name: SAMPLES[dialect][name]}
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
    assert known_to_clients()[dialect] <= SAMPLES[dialect].keys()
    fates = {name: fate(dialect, name) for name in SAMPLES[dialect]}
    refused = {name for name, one in fates.items() if one == "refused"}
    assert refused == {*REFUSED[dialect].split()}
    idle = {name for name, one in fates.items() if one == "without effect"}
    assert idle == without_effect()[dialect]
