"""The canonical form: a chat request for an engine, and what a model completed it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from jaxserve.gateway.dialects.template_policy import TemplatePolicy, fitted, limited


@dataclass(frozen=True, slots=True)
class Asked:
    """A client's request: its body, what its path says, and what the gateway gave it."""

    fields: Mapping[str, Any]
    """the body, parsed; never changed."""
    id: str
    """of the answer, without the prefix that a dialect gives it."""
    unix_s: int
    """when it came, s since 1970."""
    model: str | None = None
    """that the path names; None where the body does."""
    streamed: bool | None = None
    """what the path says of streaming; None where the body says it."""
    counts: bool = False
    """whether the path asks for the number of its tokens, and nothing else."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A request in canonical form, with what its dialect needs for the way back.

    JSON is held as bytes: nobody can change what was recorded.
    """

    content: bytes
    """the OpenAI chat request for the engine."""
    id: str
    """of the answer, without a prefix."""
    unix_s: int
    """when the request came, s since 1970."""
    model: str
    """that the client asked for, and reads in its answer."""
    streamed: bool
    """whether the client waits for events."""
    parallel: bool = False
    """whether it asks for several answers at a time."""
    notes: bytes = b"{}"
    """a JSON object that only the dialect itself reads, on the way back."""

    @property
    def request(self) -> dict[str, Any]:
        """The request, parsed anew: the caller's own."""
        return orjson.loads(self.content)

    @property
    def noted(self) -> dict[str, Any]:
        """The notes, parsed anew."""
        return orjson.loads(self.notes)


def chat_from(
    asked: Asked,
    model: str,
    messages: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Any],
    policy: TemplatePolicy,
    *,
    streamed: bool,
    notes: Mapping[str, Any] | None = None,
) -> Chat:
    """A chat request put together.

    Args:
      asked: the request that it comes from.
      model: that the client named.
      messages: in canonical form and in the client's order.
      fields: of the request beside model, messages and streaming.
      policy: of the model's chat template.
      streamed: whether the client waits for events.
      notes: for the way back.
    """
    request = {"model": model, "messages": fitted(messages, policy), **limited(fields, policy)}
    if streamed:
        request["stream"] = True
        # Every dialect tells its usage, if not in each of its streams; captures need it anyway.
        request["stream_options"] = {"include_usage": True}
    wanted = request.get("n")
    return Chat(
        content=orjson.dumps(request),
        id=asked.id,
        unix_s=asked.unix_s,
        model=model,
        streamed=streamed,
        parallel=isinstance(wanted, int) and wanted > 1,
        notes=orjson.dumps(notes or {}),
    )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called."""

    id: str
    name: str
    arguments: str
    """as the model wrote them: JSON, if it made no mistake."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Tokens as the engine counted them; None where it does not say."""

    prompt: int | None = None
    output: int | None = None
    """reasoning included."""
    cached: int | None = None
    """tokens of the prompt that were in the prefix cache."""
    reasoning: int | None = None
    """tokens of the output that are reasoning."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the answers to a request."""

    index: int = 0
    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: str | None = None
    """why it ended, in the words of OpenAI's chat; None where the stream broke off."""
    stop: str | None = None
    """the stop sequence that ended it."""
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """one entry a token, as the engine gave them; empty where it gave none."""


@dataclass(frozen=True, slots=True)
class Completion:
    """All answers to a request."""

    choices: tuple[Choice, ...]
    """by index."""
    counts: Counts = field(default_factory=Counts)

    @property
    def first(self) -> Choice:
        """The answer of a dialect that has only one."""
        return self.choices[0] if self.choices else Choice()
