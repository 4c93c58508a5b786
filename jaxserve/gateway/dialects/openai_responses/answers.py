"""Answers of OpenAI's ``/v1/responses``, whole and in events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxserve.gateway.dialects.blocks import (
    Block,
    BlockClosed,
    BlockGrown,
    BlockOpened,
    Blocks,
    BlockStep,
)
from jaxserve.gateway.dialects.canonical import Chat, Completion, Counts
from jaxserve.gateway.dialects.deltas import (
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

_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Reasons of incomplete responses, by finish reason."""


def answer_body(chat: Chat, completion: Completion) -> dict[str, Any]:
    """Body of a whole answer."""
    choice = completion.first
    items, blocks = _Items(chat), Blocks()
    steps: list[BlockStep] = []
    for delta in deltas_of(Completion((choice,))):
        if not isinstance(delta, Finish | Logprobs | Counts):
            steps += blocks.feed(delta)
    steps += blocks.end()
    output = [
        items.item(step.block, "completed") for step in steps if isinstance(step, BlockClosed)
    ]
    return _ended(chat, output, choice.finish, completion.counts)


def count_body(tokens: int) -> dict[str, Any]:
    """Body of the answer to a request that counts tokens."""
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _response(chat: Chat, status: str, output: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "id": f"resp_{chat.id}",
        "object": "response",
        "created_at": chat.unix_s,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": chat.model,
        "output": output,
        "previous_response_id": None,
        "store": False,
        "usage": None,
        **chat.noted["repeated"],
        **more,
    }


def _ended(
    chat: Chat, output: list[dict[str, Any]], finish: str | None, counts: Counts
) -> dict[str, Any]:
    usage = None if counts == Counts() else _usage(counts)
    reason = _CUT.get(finish or "")
    if reason is None:
        return _response(chat, "completed", output, usage=usage)
    return _response(
        chat, "incomplete", _cut(output), usage=usage, incomplete_details={"reason": reason}
    )


def _cut(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Output items, the last one marked as incomplete."""
    return [*output[:-1], {**output[-1], "status": "incomplete"}] if output else output


def _usage(counts: Counts) -> dict[str, Any]:
    prompt, output = counts.prompt or 0, counts.output or 0
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": counts.cached or 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning or 0},
        "total_tokens": prompt + output,
    }


class _Items:
    """Output items of the blocks of a choice."""

    def __init__(self, chat: Chat) -> None:
        noted = chat.noted
        self._id = chat.id
        self._seals = noted["seals"]
        self._tools: Mapping[str, Mapping[str, Any]] = noted["tools"]

    def id(self, block: Block) -> str:
        """Id of the item of a block."""
        kind = "rs" if block.kind is Reasoning else "msg"
        if block.start is not None:
            kind = "ctc" if self.is_custom(block) else "fc"
        return f"{kind}_{self._id}_{block.number}"

    def is_custom(self, block: Block) -> bool:
        """Whether a block calls a custom tool."""
        start = block.start
        return start is not None and bool(self._tools.get(start.name, {}).get("custom"))

    def part(self, block: Block, text: str) -> dict[str, Any]:
        """The single content part of a block of text, refusal or reasoning."""
        if block.kind is Reasoning:
            return {"type": "reasoning_text", "text": text}
        if block.kind is Refusal:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, block: Block, status: str) -> dict[str, Any]:
        """Item of a block: empty while in progress."""
        begun = status != "in_progress"
        item: dict[str, Any] = {"id": self.id(block), "status": status}
        if block.start is not None:
            return item | self._call(block, block.text if begun else None)
        content = [self.part(block, block.text)] if begun else []
        if block.kind is not Reasoning:
            return item | {"type": "message", "role": "assistant", "content": content}
        item |= {"type": "reasoning", "summary": [], "content": content}
        if self._seals:
            item["encrypted_content"] = sealed(block.text) if begun else None
        return item

    def input(self, block: Block) -> str:
        """Input of a custom tool: the field ``input``, else the text as the model wrote it."""
        found = arguments_object(block.text).get("input")
        return found if isinstance(found, str) else block.text

    def _call(self, block: Block, arguments: str | None) -> dict[str, Any]:
        assert block.start is not None
        shown = self._tools.get(block.start.name, {})
        call = {"call_id": block.start.id, "name": shown.get("name", block.start.name)}
        if shown.get("namespace"):
            call["namespace"] = shown["namespace"]
        if self.is_custom(block):
            given = "" if arguments is None else self.input(block)
            return {"type": "custom_tool_call", **call, "input": given}
        return {"type": "function_call", **call, "arguments": arguments or ""}


class ResponsesEventWriter(EventWriter):
    """Writer of a streamed answer."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._items = _Items(chat)
        self._blocks = Blocks()
        self._output: list[dict[str, Any]] = []
        self._counts = Counts()
        self._finish: str | None = None

    def end(self) -> bytes:
        """End of the open block, and the whole response."""
        data, steps = self._start(), list(self._blocks.end())
        for number, step in enumerate(steps, 1):
            cut = number == len(steps) and self._finish in _CUT
            data += self._step(step, "incomplete" if cut else "completed")
        response = _ended(self._chat, self._output, self._finish, self._counts)
        return data + self._event(f"response.{response['status']}", response=response)

    def _delta(self, delta: Delta) -> bytes:
        match delta:
            case Counts():
                self._counts = delta
                return b""
            case Logprobs():
                return b""
            case Finish(_, reason):
                self._finish = reason
                return b""
        steps = self._blocks.feed(delta)
        return self._start() + b"".join(self._step(step, "completed") for step in steps)

    def _start(self) -> bytes:
        if self.events:
            return b""
        response = _response(self._chat, "in_progress", [])
        created = self._event("response.created", response=response)
        return created + self._event("response.in_progress", response=response)

    def _step(self, step: BlockStep, status: str) -> bytes:
        match step:
            case BlockOpened(block):
                return self._opened(block)
            case BlockGrown(block, text):
                return self._grown(block, text)
            case BlockClosed(block):
                return self._closed(block, status)

    def _opened(self, block: Block) -> bytes:
        item = self._items.item(block, "in_progress")
        added = self._event("response.output_item.added", output_index=block.number, item=item)
        if block.start is not None:
            return added
        part = self._items.part(block, "")
        return added + self._of_part("response.content_part.added", block, part=part)

    def _grown(self, block: Block, text: str) -> bytes:
        if self._items.is_custom(block):
            return b""  # JSON with the text inside is readable only at its end
        return self._of_text(block, "delta", delta=text)

    def _closed(self, block: Block, status: str) -> bytes:
        data = b""
        if self._items.is_custom(block):
            given = self._items.input(block)
            data += self._of_text(block, "delta", delta=given)
            data += self._of_text(block, "done", input=given)
        elif block.start is not None:
            data += self._of_text(block, "done", arguments=block.text)
        else:
            name = "refusal" if block.kind is Refusal else "text"
            data += self._of_text(block, "done", **{name: block.text})
            part = self._items.part(block, block.text)
            data += self._of_part("response.content_part.done", block, part=part)
        item = self._items.item(block, status)
        self._output.append(item)
        return data + self._event("response.output_item.done", output_index=block.number, item=item)

    def _of_text(self, block: Block, what: str, **fields: Any) -> bytes:
        """Event for the text of a block, under the name of the block's kind."""
        if block.start is not None:
            custom = self._items.is_custom(block)
            name = "custom_tool_call_input" if custom else "function_call_arguments"
            where = {"item_id": self._items.id(block), "output_index": block.number}
            return self._event(f"response.{name}.{what}", **where, **fields)
        if block.kind is Reasoning:
            return self._of_part(f"response.reasoning_text.{what}", block, **fields)
        if block.kind is Refusal:
            return self._of_part(f"response.refusal.{what}", block, **fields)
        return self._of_part(f"response.output_text.{what}", block, logprobs=[], **fields)

    def _of_part(self, kind: str, block: Block, **fields: Any) -> bytes:
        where = {"item_id": self._items.id(block), "output_index": block.number}
        return self._event(kind, **where, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = named_event(kind, {"type": kind, "sequence_number": self.events, **fields})
        self.events += 1
        return event
