"""The canonical form: a chat request for an engine, and the completion of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from jaxserve.gateway.dialects.template_policy import TemplatePolicy, fitted, limited


@dataclass(frozen=True, slots=True)
class DialectRequest:
    """A client's request before its translation: its body, and facts from its path."""

    fields: Mapping[str, Any]
    """body, parsed; never changed."""
    id: str
    """id of the answer, without the prefix of a dialect."""
    unix_s: int
    """arrival of the request, s since 1970."""
    model: str | None = None
    """model in the path; None where the body names the model."""
    streamed: bool | None = None
    """whether the path asks for a stream; None where the body decides."""
    counts: bool = False
    """whether the path asks only for the number of the prompt's tokens."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A request in canonical form, with notes of its dialect for the answer.

    JSON is held as bytes, so that a recorded request cannot change.
    """

    content: bytes
    """OpenAI chat request for the engine, JSON."""
    id: str
    """id of the answer, without a prefix."""
    unix_s: int
    """arrival of the request, s since 1970."""
    model: str
    """model under the client's name, which the answer repeats."""
    streamed: bool
    """whether the client asks for a stream."""
    parallel: bool = False
    """whether the client asks for several choices."""
    notes: bytes = b"{}"
    """JSON object for the dialect's own translation of the answer."""

    @property
    def request(self) -> dict[str, Any]:
        """A fresh copy of the request."""
        return orjson.loads(self.content)

    @property
    def noted(self) -> dict[str, Any]:
        """A fresh copy of the notes."""
        return orjson.loads(self.notes)


def build_chat(
    source: DialectRequest,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Any],
    policy: TemplatePolicy,
    *,
    streamed: bool,
    notes: Mapping[str, Any] | None = None,
) -> Chat:
    """Builds a request in canonical form.

    Args:
      source: the client's request.
      model: model under the client's name.
      messages: messages in canonical form and in the client's order.
      fields: other fields of the chat request, without the ones for streaming.
      policy: policy of the model's chat template.
      streamed: whether the client asks for a stream.
      notes: notes for the translation of the answer.
    """
    request = {"model": model, "messages": fitted(messages, policy), **limited(fields, policy)}
    if streamed:
        request["stream"] = True
        # Usage is asked for in every stream: most dialects report it, and records need it.
        request["stream_options"] = {"include_usage": True}
    count = request.get("n")
    return Chat(
        content=orjson.dumps(request),
        id=source.id,
        unix_s=source.unix_s,
        model=model,
        streamed=streamed,
        parallel=isinstance(count, int) and count > 1,
        notes=orjson.dumps(notes or {}),
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function by the model."""

    id: str
    name: str
    arguments: str
    """arguments as the model wrote them: JSON, if the model made no mistake."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens counted by the engine; None where the engine reports no count."""

    prompt: int | None = None
    """tokens of the prompt."""
    output: int | None = None
    """tokens of the output, reasoning included."""
    cached: int | None = None
    """tokens of the prompt found in the prefix cache."""
    reasoning: int | None = None
    """tokens of the output that are reasoning."""


@dataclass(frozen=True, slots=True)
class CompletionChoice:
    """A choice of a completion."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str | None = None
    """finish reason in OpenAI's terms; None where the stream broke off."""
    stop: str | None = None
    """stop sequence that ended the choice."""
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """entries of the engine, one per token; empty where the engine sent none."""


@dataclass(frozen=True, slots=True)
class Completion:
    """All choices of an answer, with its usage."""

    choices: tuple[CompletionChoice, ...]
    """choices by index."""
    counts: Counts = field(default_factory=Counts)

    @property
    def first(self) -> CompletionChoice:
        """The first choice, for dialects that have only one."""
        return self.choices[0] if self.choices else CompletionChoice()
