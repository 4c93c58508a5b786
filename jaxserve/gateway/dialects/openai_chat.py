"""OpenAI's ``/v1/chat/completions``, the canonical form itself, and ``/v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from jaxserve.checks import JsonObject
from jaxserve.gateway.dialects.canonical import (
    Chat,
    Completion,
    CompletionChoice,
    Counts,
    DialectRequest,
    build_chat,
)
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
from jaxserve.gateway.dialects.dialect import (
    DELTA_OUTPUT,
    Dialect,
    ModelCard,
    Translation,
    error_type,
    finishes_by_index,
    openai_failed,
    openai_usage,
)
from jaxserve.gateway.dialects.request_fields import (
    function_call,
    optional_object,
    optional_objects,
    optional_texts,
    refuse_fields,
    refuse_unsupported,
    refuses_bad_input,
    wants_stream,
)
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import object_items

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
"""Fields that the gateway sets itself, or that concern only the client and its provider."""


@refuses_bad_input
def to_chat(asked: DialectRequest, policy: TemplatePolicy) -> Chat:
    """Reads a client's request into the canonical form.

    Raises:
      RequestError: the request is malformed, or asks for something that engines lack.
    """
    fields = JsonObject(asked.fields, "the request")
    refuse_fields(fields, _LACKING)
    if {*optional_texts(fields, "modalities")} - {"text"}:
        refuse_unsupported(
            "modalities other than text are not supported: the model writes text only"
        )
    for tool in optional_objects(fields, "tools"):
        tool.one_of("type", ("function",))
        tool.inside("function").text("name")
    fields.entries("messages")
    messages = [_message(message) for message in optional_objects(fields, "messages")]
    streamed = wants_stream(fields)
    wants_usage = (
        streamed and optional_object(fields, "stream_options").get("include_usage") is True
    )
    return build_chat(
        asked,
        fields.text("model"),
        messages,
        # Drop nulls: some engines reject null where OpenAI means the default.
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
    """A message with its reasoning under the canonical name."""
    role = message.one_of("role", _ROLES)
    if role == "tool":
        message.text("tool_call_id")
    if not isinstance(message.get("content"), str | None):
        for part in optional_objects(message, "content"):
            part.text("type")
    found = dict(message)
    if role == "assistant":
        reasoning = found.pop("reasoning", None)
        if found.get("reasoning_content") is None:
            found.pop("reasoning_content", None)
            if reasoning is not None:
                found["reasoning_content"] = reasoning
    return found


def answer_body(chat: Chat, completion: Completion) -> dict[str, Any]:
    """Body of a whole answer."""
    choices = [_choice(choice, chat.noted) for choice in completion.choices]
    body = {**_head(chat, "chat.completion"), "choices": choices}
    return body if completion.counts == Counts() else {**body, "usage": _usage(completion.counts)}


def _choice(choice: CompletionChoice, noted: Mapping[str, Any]) -> dict[str, Any]:
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


class ChatEventWriter(EventWriter):
    """Writer of a streamed answer; usage comes at the end."""

    def __init__(self, chat: Chat) -> None:
        self._head = _head(chat, "chat.completion.chunk")
        self._noted = chat.noted
        self._begun: set[int] = set()
        self._counts: Counts | None = None

    def end(self) -> bytes:
        """Usage, if the client asked for it, and the end of the stream."""
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
            opening = self._choice_event(delta.choice, {"role": "assistant", "content": ""})
        return opening + self._piece(delta)

    def _piece(self, delta: Delta) -> bytes:
        match delta:
            case Reasoning(at, text):
                return self._choice_event(at, {"reasoning_content": text})
            case Text(at, text):
                return self._choice_event(at, {"content": text}) if text else b""
            case Refusal(at, text):
                return self._choice_event(at, {"refusal": text})
            case CallStart(at, call, call_id, name):
                start = {"index": call, **function_call(call_id, name, "")}
                return self._choice_event(at, {"tool_calls": [start]})
            case Arguments(at, call, text):
                more = {"index": call, "function": {"arguments": text}}
                return self._choice_event(at, {"tool_calls": [more]})
            case Logprobs(at, entries):
                return self._choice_event(at, {}, logprobs={"content": entries, "refusal": None})
            case Finish(at, reason):
                return self._choice_event(at, {}, finish_reason=reason)
        raise AssertionError(delta)

    def _choice_event(self, at: int, delta: Mapping[str, Any], **more: Any) -> bytes:
        choice = {"index": at, "delta": delta, "finish_reason": None, "logprobs": None, **more}
        return self._chunk([choice])

    def _chunk(self, choices: list[Any], **more: Any) -> bytes:
        self.events += 1
        return b"data: %b\n\n" % orjson.dumps({**self._head, "choices": choices, **more})


def model_body(card: ModelCard) -> dict[str, Any]:
    """One model."""
    model: dict[str, Any] = {"id": card.id, "object": "model", "created": card.created_s}
    model["owned_by"] = "jaxserve"
    return model if card.context_tokens is None else model | {"max_model_len": card.context_tokens}


def models_body(cards: Sequence[ModelCard]) -> dict[str, Any]:
    """List of models."""
    return {"object": "list", "data": [model_body(card) for card in cards]}


_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def openai_error(error: RequestError) -> Mapping[str, Any]:
    """Body of an error of any of OpenAI's APIs."""
    kind = error_type(error.status, _ERROR_TYPES, "server_error")
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.reason}}


def _error_event(error: RequestError, events: int) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(openai_error(error))


def _chat_token(event: Mapping[str, Any]) -> bool:
    for choice in object_items(event.get("choices")):
        delta = choice.get("delta")
        if choice.get("token_ids"):
            return True
        if isinstance(delta, dict) and (
            any(delta.get(name) for name in DELTA_OUTPUT)
            or (not delta.get("role") and _is_partial(delta.get("content"), choice))
        ):
            return True
    return False


def _completions_token(event: Mapping[str, Any]) -> bool:
    return any(
        choice.get("text") or choice.get("token_ids") or _is_partial(choice.get("text"), choice)
        for choice in object_items(event.get("choices"))
    )


def _is_partial(text: Any, choice: Mapping[str, Any]) -> bool:
    """Whether a token is only a part of a character: engines send it with an empty text."""
    return text == "" and choice.get("finish_reason") is None


CHAT = Dialect(
    name="chat",
    error=openai_error,
    error_event=_error_event,
    has_token=_chat_token,
    is_error=openai_failed,
    usage=openai_usage,
    finishes=lambda event: finishes_by_index(event.get("choices"), "finish_reason"),
    translation=Translation(to_chat, answer_body, ChatEventWriter, model_body, models_body),
    asks_for_usage=True,
)
COMPLETIONS = replace(CHAT, name="completions", has_token=_completions_token, translation=None)
