"""Answers of Google's ``generateContent``, whole and in events."""

from __future__ import annotations

from typing import Any

import orjson

from jaxserve.gateway.dialects.blocks import Block, BlockClosed, BlockGrown, Blocks, BlockStep
from jaxserve.gateway.dialects.canonical import Chat, Completion, Counts
from jaxserve.gateway.dialects.deltas import (
    Delta,
    EventWriter,
    Finish,
    Logprobs,
    Reasoning,
    deltas_of,
)
from jaxserve.gateway.dialects.request_fields import arguments_object
from jaxserve.gateway.dialects.sealed_reasoning import sealed

_FINISHES = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}

Part = dict[str, Any]


def answer_body(chat: Chat, completion: Completion) -> dict[str, Any]:
    """Body of a whole answer."""
    candidates = []
    for choice in completion.choices:
        parts = _Parts(chat, whole=True)
        found: list[Part] = []
        for delta in deltas_of(Completion((choice,))):
            if not isinstance(delta, Finish | Logprobs | Counts):
                found += parts.feed(delta)
        candidates.append(_candidate(choice.index, [*found, *parts.end()], choice.finish))
    return _answer(chat, candidates, completion.counts)


def count_body(tokens: int) -> dict[str, Any]:
    """Body of the answer to a request that counts tokens."""
    return {"totalTokens": tokens}


def _answer(chat: Chat, candidates: list[Any], counts: Counts | None = None) -> dict[str, Any]:
    answer = {"candidates": candidates, "modelVersion": chat.model, "responseId": chat.id}
    return answer if counts is None else {**answer, "usageMetadata": _usage(counts)}


def _candidate(index: int, parts: list[Part], finish: str | None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": index}
    if finish is not None:
        candidate["finishReason"] = _FINISHES.get(finish, "STOP")
    return candidate


def _usage(counts: Counts) -> dict[str, Any]:
    prompt, output, thoughts = counts.prompt or 0, counts.output or 0, counts.reasoning or 0
    usage = {
        "promptTokenCount": prompt,
        # Google counts thoughts apart from the candidates.
        "candidatesTokenCount": max(output - thoughts, 0),
        "totalTokenCount": prompt + output,
    }
    if counts.reasoning is not None:
        usage["thoughtsTokenCount"] = thoughts
    if counts.cached is not None:
        usage["cachedContentTokenCount"] = counts.cached
    return usage


class _Parts:
    """Parts of a candidate, from the blocks of a choice.

    As in Google's answers, the signature of a thought is on the part behind the thought: clients
    keep the signature there when they drop the thought. Calls are whole, since their arguments are
    an object.
    """

    def __init__(self, chat: Chat, *, whole: bool) -> None:
        """Args:
        chat: request of the answer.
        whole: whether a block becomes one part, not one part for each of its pieces.
        """
        self._shows_thoughts = chat.noted["shows_thoughts"]
        self._whole = whole
        self._blocks = Blocks()
        self._signature = ""

    def feed(self, delta: Any) -> list[Part]:
        """Parts of a delta with output."""
        return [part for step in self._blocks.feed(delta) for part in self._step(step)]

    def end(self) -> list[Part]:
        """The last parts; a signature without a part behind it comes with an empty thought."""
        parts = [part for step in self._blocks.end() for part in self._step(step)]
        if self._signature:
            parts.append(self._signed({"text": "", "thought": True}))
        return parts

    def _step(self, step: BlockStep) -> list[Part]:
        block = step.block
        match step:
            case BlockGrown(_, text) if not self._whole and block.start is None:
                return self._text_parts(block, text)
            case BlockClosed() if block.start is not None:
                return [self._signed(_call(block))]
            case BlockClosed():
                parts = self._text_parts(block, block.text) if self._whole else []
                if block.kind is Reasoning:
                    self._signature = sealed(block.text)
                return parts
        return []

    def _text_parts(self, block: Block, text: str) -> list[Part]:
        if block.kind is not Reasoning:
            return [self._signed({"text": text})]
        return [{"text": text, "thought": True}] if self._shows_thoughts else []

    def _signed(self, part: Part) -> Part:
        signature, self._signature = self._signature, ""
        return {**part, "thoughtSignature": signature} if signature else part


def _call(block: Block) -> Part:
    assert block.start is not None
    call = {"id": block.start.id, "name": block.start.name, "args": arguments_object(block.text)}
    return {"functionCall": call}


class GoogleEventWriter(EventWriter):
    """Writer of a streamed answer (``alt=sse``); finish reasons and usage come at the end."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._parts: dict[int, _Parts] = {}
        self._finishes: dict[int, str] = {}
        self._counts = Counts()

    def end(self) -> bytes:
        """Last parts and finish reason of every candidate, and the usage."""
        candidates = [
            _candidate(at, parts.end(), self._finishes.get(at))
            for at, parts in sorted(self._parts.items())
        ]
        return self._event(_answer(self._chat, candidates, self._counts))

    def _delta(self, delta: Delta) -> bytes:
        if isinstance(delta, Counts):
            self._counts = delta
            return b""
        parts = self._parts.setdefault(delta.choice, _Parts(self._chat, whole=False))
        if isinstance(delta, Finish):
            self._finishes[delta.choice] = delta.reason
        if isinstance(delta, Finish | Logprobs):
            return b""
        found = parts.feed(delta)
        if not found:
            return b""
        return self._event(_answer(self._chat, [_candidate(delta.choice, found, None)]))

    def _event(self, answer: dict[str, Any]) -> bytes:
        self.events += 1
        return b"data: %b\r\n\r\n" % orjson.dumps(answer)
