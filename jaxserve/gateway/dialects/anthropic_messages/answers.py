"""Answers of Anthropic's ``/v1/messages``, whole and in events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxserve.gateway.dialects.blocks import (
    Block,
    BlockClosed,
    BlockGrown,
    BlockOpened,
    Blocks,
    BlockStep,
)
from jaxserve.gateway.dialects.canonical import Chat, Completion, CompletionChoice, Counts
from jaxserve.gateway.dialects.deltas import (
    CallStart,
    Delta,
    EventWriter,
    Finish,
    Logprobs,
    Reasoning,
    Refusal,
    deltas_of,
)
from jaxserve.gateway.dialects.dialect import named_event
from jaxserve.gateway.dialects.request_fields import arguments_object
from jaxserve.gateway.dialects.sealed_reasoning import sealed

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def answer_body(chat: Chat, completion: Completion) -> dict[str, Any]:
    """Body of a whole answer."""
    choice = completion.first
    blocks, content = Blocks(), []
    for delta in deltas_of(Completion((choice,))):
        if not isinstance(delta, Finish | Logprobs | Counts):
            content += _whole(chat, blocks.feed(delta))
    content += _whole(chat, blocks.end())
    reason, sequence = _stop(choice.finish, choice.stop, blocks.kinds)
    message = _message(chat, completion.counts)
    return {**message, "content": content, "stop_reason": reason, "stop_sequence": sequence}


def count_body(tokens: int) -> dict[str, Any]:
    """Body of the answer to a request that counts tokens."""
    return {"input_tokens": tokens}


def _whole(chat: Chat, steps: Iterable[BlockStep]) -> Iterator[dict[str, Any]]:
    """Content blocks of the blocks that have ended."""
    for step in steps:
        if isinstance(step, BlockClosed):
            block = step.block
            found = _empty(block)
            if block.kind is Reasoning:
                found["thinking"] = block.text if chat.noted["shows_thinking"] else ""
                found["signature"] = sealed(block.text)
            elif block.start is not None:
                found["input"] = arguments_object(block.text)
            else:
                found["text"] = block.text
            yield found


def _empty(block: Block) -> dict[str, Any]:
    """Content block at its start."""
    if block.kind is Reasoning:
        return {"type": "thinking", "thinking": "", "signature": ""}
    if block.start is not None:
        return {"type": "tool_use", "id": block.start.id, "name": block.start.name, "input": {}}
    # A refusal is text, with a stop reason of its own.
    return {"type": "text", "text": ""}


def _stop(
    finish: str | None, sequence: str | None, kinds: set[type]
) -> tuple[str | None, str | None]:
    """Stop reason and stop sequence."""
    if finish is None:
        return None, None
    if Refusal in kinds:
        return "refusal", None
    if finish in _STOPS:
        return _STOPS[finish], None
    if CallStart in kinds:  # engines report ``stop`` for a forced call
        return "tool_use", None
    return ("end_turn", None) if sequence is None else ("stop_sequence", sequence)


def _message(chat: Chat, counts: Counts) -> dict[str, Any]:
    return {
        "id": f"msg_{chat.id}",
        "type": "message",
        "role": "assistant",
        "model": chat.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(counts),
    }


def _usage(counts: Counts) -> dict[str, Any]:
    cached = counts.cached or 0
    usage: dict[str, Any] = {
        # Anthropic counts cached tokens apart from the input.
        "input_tokens": max((counts.prompt or 0) - cached, 0),
        "output_tokens": counts.output or 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }
    if counts.reasoning is not None:
        usage["output_tokens_details"] = {"thinking_tokens": counts.reasoning}
    return usage


class MessagesEventWriter(EventWriter):
    """Writer of a streamed answer; stop reason and usage come at the end."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._shows_thinking = chat.noted["shows_thinking"]
        self._blocks = Blocks()
        self._counts = Counts()
        self._choice = CompletionChoice()
        self._started = False

    def end(self) -> bytes:
        """End of the last block, stop reason and usage."""
        data = self._start() + b"".join(map(self._step, self._blocks.end()))
        reason, sequence = _stop(self._choice.finish, self._choice.stop, self._blocks.kinds)
        last = {"stop_reason": reason, "stop_sequence": sequence}
        data += self._event("message_delta", delta=last, usage=_usage(self._counts))
        return data + self._event("message_stop")

    def _delta(self, delta: Delta) -> bytes:
        match delta:
            case Counts():
                self._counts = delta
                return b""
            case Logprobs():
                return b""
            case Finish(choice, reason, stop):
                self._choice = CompletionChoice(choice, finish=reason, stop=stop)
                return b""
        return self._start() + b"".join(map(self._step, self._blocks.feed(delta)))

    def _start(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        # Usage is usually zero here: engines report it at the end.
        return self._event("message_start", message=_message(self._chat, self._counts))

    def _step(self, step: BlockStep) -> bytes:
        block = step.block
        at = block.number
        match step:
            case BlockOpened():
                return self._event("content_block_start", index=at, content_block=_empty(block))
            case BlockGrown(_, text):
                return self._grown(block, text)
            case BlockClosed():
                signature = b""
                if block.kind is Reasoning:
                    delta = {"type": "signature_delta", "signature": sealed(block.text)}
                    signature = self._event("content_block_delta", index=at, delta=delta)
                return signature + self._event("content_block_stop", index=at)

    def _grown(self, block: Block, text: str) -> bytes:
        delta: Mapping[str, str]
        if block.kind is Reasoning:
            if not self._shows_thinking:
                return b""
            delta = {"type": "thinking_delta", "thinking": text}
        elif block.start is not None:
            delta = {"type": "input_json_delta", "partial_json": text}
        else:
            delta = {"type": "text_delta", "text": text}
        return self._event("content_block_delta", index=block.number, delta=delta)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self.events += 1
        return named_event(kind, {"type": kind, **fields})
