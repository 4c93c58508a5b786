"""Deltas of a choice as consecutive blocks, the unit of most dialects' streams.

A block of text, reasoning or refusal ends when another kind begins; a call ends when the next call
begins, or the choice ends. Other deltas that arrive inside a call wait for its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxserve.gateway.dialects.deltas import (
    Arguments,
    CallStart,
    Reasoning,
    Refusal,
    Text,
)
from jaxserve.gateway.http.errors import RequestError

OutputDelta = Reasoning | Text | Refusal | CallStart | Arguments
"""Deltas with output."""


@dataclass(slots=True)
class Block:
    """A block; its text is complete once the block has ended."""

    kind: type[Reasoning] | type[Text] | type[Refusal] | type[CallStart]
    number: int
    """number of the block in its choice."""
    start: CallStart | None = None
    """delta that started the call; None for other kinds."""
    pieces: list[str] = field(default_factory=list)
    """text in the order of arrival."""

    @property
    def text(self) -> str:
        """Text so far; of a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockOpened:
    """Start of a block."""

    block: Block


@dataclass(frozen=True, slots=True)
class BlockGrown:
    """More text of a block."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockClosed:
    """End of a block."""

    block: Block


BlockStep = BlockOpened | BlockGrown | BlockClosed


class Blocks:
    """The blocks of one choice."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        """kinds of the blocks so far."""
        self._count = 0
        self._open: Block | None = None
        self._held: list[Reasoning | Text | Refusal] = []

    def feed(self, delta: OutputDelta) -> Iterator[BlockStep]:
        """Adds a delta.

        Raises:
          RequestError: the delta has arguments of a call that has ended, or never began.
        """
        block = self._open
        if isinstance(delta, CallStart):
            yield from self.end()
            yield from self._begin(CallStart, delta)
        elif isinstance(delta, Arguments):
            if block is None or block.start is None or block.start.call != delta.call:
                raise RequestError(
                    502, "engine_garbage", "the engine mixed the arguments of two calls"
                )
            yield from self._grow(delta.text)
        elif block is not None and block.start is not None:
            self._held.append(delta)
        elif delta.text:
            if block is None or block.kind is not type(delta):
                yield from self.end()
                yield from self._begin(type(delta), None)
            yield from self._grow(delta.text)

    def end(self) -> Iterator[BlockStep]:
        """Ends the open block, then adds the deltas that waited for its end."""
        if self._open is not None:
            block, self._open = self._open, None
            yield BlockClosed(block)
        held, self._held = self._held, []
        for delta in held:
            yield from self.feed(delta)
        if held:
            yield from self.end()

    def _begin(self, kind: type, start: CallStart | None) -> Iterator[BlockStep]:
        self._open = Block(kind, self._count, start)
        self.kinds.add(kind)
        self._count += 1
        yield BlockOpened(self._open)

    def _grow(self, text: str) -> Iterator[BlockStep]:
        if text and self._open is not None:
            self._open.pieces.append(text)
            yield BlockGrown(self._open, text)
