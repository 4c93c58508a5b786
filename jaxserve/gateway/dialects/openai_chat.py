"""OpenAI's ``/v1/chat/completions``: the canonical form itself, checked and tidied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from jaxserve.checks import JsonObject
from jaxserve.gateway.dialects.canonical import Asked, Chat, Choice, Completion, Counts, chat_from
from jaxserve.gateway.dialects.deltas import (
    Arguments,
    CallStart,
    Delta,
    EventWriter,
    Finish,
    Logprobs,
    Reasoning,
    Refusal,
    Text,
)
from jaxserve.gateway.dialects.request_fields import (
    asked_stream,
    function_call,
    lacks,
    listed,
    refuse_fields,
    refusing,
    within,
    words,
)
from jaxserve.gateway.dialects.template_policy import TemplatePolicy

_ROLES = ("system", "developer", "user", "assistant", "tool")
_LACKING = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "audio": "the model writes text only",
    "moderation": "nothing is moderated here",
    "prediction": "leave it out",
    "web_search_options": "the gateway has no search",
    "return_token_ids": "token ids stand in the session's records",
    "return_prompt_token_ids": "token ids stand in the session's records",
    "return_meta_info": "log-probabilities stand in the session's records",
}
_OWN = ("model", "messages", "stream", "stream_options", "store", "metadata", "service_tier")
"""Fields that the gateway sets itself, or that are between the client and its provider."""


@refusing
def chat_of(asked: Asked, policy: TemplatePolicy) -> Chat:
    """A client's request in canonical form.

    Raises:
      Problem: it is malformed, or asks for what engines lack.
    """
    fields = JsonObject(asked.fields, "the request")
    refuse_fields(fields, _LACKING)
    if {*words(fields, "modalities")} - {"text"}:
        lacks("modalities other than text are not supported: the model writes text only")
    for tool in listed(fields, "tools"):
        tool.one_of("type", ("function",))
        tool.inside("function").text("name")
    fields.entries("messages")
    messages = [_message(message) for message in listed(fields, "messages")]
    streamed = asked_stream(fields)
    wants_usage = streamed and within(fields, "stream_options").get("include_usage") is True
    return chat_from(
        asked,
        fields.text("model"),
        messages,
        # Null is the default, which not every engine reads it as.
        {name: value for name, value in fields.items() if name not in _OWN and value is not None},
        policy,
        streamed=streamed,
        notes={
            "usage": wants_usage,
            "logprobs": fields.get("logprobs") is True,
            "reasoning": fields.get("include_reasoning") is not False,
        },
    )


def _message(message: JsonObject) -> dict[str, Any]:
    """A message under the canonical name of its reasoning."""
    role = message.one_of("role", _ROLES)
    if role == "tool":
        message.text("tool_call_id")
    if not isinstance(message.get("content"), str | None):
        for part in listed(message, "content"):
            part.text("type")
    found = dict(message)
    if role == "assistant":
        reasoning = found.pop("reasoning", None)
        if found.get("reasoning_content") is None:
            found.pop("reasoning_content", None)
            if reasoning is not None:
                found["reasoning_content"] = reasoning
    return found


def body_of(chat: Chat, completion: Completion) -> dict[str, Any]:
    """A whole answer."""
    choices = [_choice(choice, chat.noted) for choice in completion.choices]
    body = {**_head(chat, "chat.completion"), "choices": choices}
    return body if completion.counts == Counts() else {**body, "usage": _usage(completion.counts)}


def _choice(choice: Choice, noted: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.text or (None if choice.calls or choice.refusal else ""),
        "refusal": choice.refusal or None,
    }
    if choice.reasoning and noted["reasoning"]:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["tool_calls"] = [
            function_call(call.id, call.name, call.arguments) for call in choice.calls
        ]
    logprobs = {"content": choice.logprobs, "refusal": None} if choice.logprobs else None
    return {
        "index": choice.index,
        "message": message,
        "finish_reason": choice.finish or "stop",
        "logprobs": logprobs if noted["logprobs"] else None,
    }


def _usage(counts: Counts) -> dict[str, Any]:
    prompt, output = counts.prompt or 0, counts.output or 0
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    if counts.cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": counts.cached}
    if counts.reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": counts.reasoning}
    return usage


def _head(chat: Chat, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{chat.id}",
        "object": kind,
        "created": chat.unix_s,
        "model": chat.model,
    }


class Events(EventWriter):
    """A streamed answer. Counts wait for the end."""

    def __init__(self, chat: Chat) -> None:
        self._head = _head(chat, "chat.completion.chunk")
        self._noted = chat.noted
        self._begun: set[int] = set()
        self._counts: Counts | None = None

    def end(self) -> bytes:
        """The usage, if asked for, and the end."""
        last = b""
        if self._noted["usage"]:
            last = self._chunk([], usage=_usage(self._counts or Counts()))
        return last + b"data: [DONE]\n\n"

    def _delta(self, delta: Delta) -> bytes:
        if isinstance(delta, Counts):
            self._counts = delta
            return b""
        unwanted = (isinstance(delta, Logprobs) and not self._noted["logprobs"]) or (
            isinstance(delta, Reasoning) and not self._noted["reasoning"]
        )
        if unwanted:
            return b""
        opening = b""
        if delta.choice not in self._begun:
            self._begun.add(delta.choice)
            opening = self._said(delta.choice, {"role": "assistant", "content": ""})
        return opening + self._piece(delta)

    def _piece(self, delta: Delta) -> bytes:
        match delta:
            case Reasoning(at, text):
                return self._said(at, {"reasoning_content": text})
            case Text(at, text):
                return self._said(at, {"content": text}) if text else b""
            case Refusal(at, text):
                return self._said(at, {"refusal": text})
            case CallStart(at, call, call_id, name):
                start = {"index": call, **function_call(call_id, name, "")}
                return self._said(at, {"tool_calls": [start]})
            case Arguments(at, call, text):
                more = {"index": call, "function": {"arguments": text}}
                return self._said(at, {"tool_calls": [more]})
            case Logprobs(at, entries):
                return self._said(at, {}, logprobs={"content": entries, "refusal": None})
            case Finish(at, reason):
                return self._said(at, {}, finish_reason=reason)
        raise AssertionError(delta)

    def _said(self, at: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": at, "delta": delta, "finish_reason": None, "logprobs": None, **more}
        return self._chunk([choice])

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        self.events += 1
        return b"data: %b\n\n" % orjson.dumps({**self._head, "choices": choices, **more})
