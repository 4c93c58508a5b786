"""Deltas of a choice as blocks, one after the other: what most dialects' streams are made of.

A block of text, reasoning or refusal ends when another kind begins; a call ends when the next one
begins, or the choice ends. What the model says between a call's start and its end waits until then.
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
from jaxserve.gateway.http.errors import Problem

Spoken = Reasoning | Text | Refusal | CallStart | Arguments
"""Deltas that bring output."""


@dataclass(slots=True)
class Block:
    """A block; its text is whole once it has ended."""

    kind: type[Reasoning] | type[Text] | type[Refusal] | type[CallStart]
    number: int
    """in its choice."""
    start: CallStart | None = None
    """of a call."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of it so far; a call's arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    """A block begins."""

    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    """A block has more text."""

    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A block has ended."""

    block: Block


Step = Opened | Grown | Closed


class Blocks:
    """The blocks of one choice."""

    def __init__(self) -> None:
        self.kinds: set[type] = set()
        """of blocks so far."""
        self._count = 0
        self._open: Block | None = None
        self._held: list[Reasoning | Text | Refusal] = []

    def feed(self, delta: Spoken) -> Iterator[Step]:
        """What a delta does.

        Raises:
          Problem: arguments of a call that has ended already, or never began.
        """
        block = self._open
        if isinstance(delta, CallStart):
            yield from self.end()
            yield from self._begin(CallStart, delta)
        elif isinstance(delta, Arguments):
            if block is None or block.start is None or block.start.call != delta.call:
                raise Problem(502, "engine_garbage", "the engine mixed the arguments of two calls")
            yield from self._grow(delta.text)
        elif block is not None and block.start is not None:
            self._held.append(delta)
        elif delta.text:
            if block is None or block.kind is not type(delta):
                yield from self.end()
                yield from self._begin(type(delta), None)
            yield from self._grow(delta.text)

    def end(self) -> Iterator[Step]:
        """Ends what is open, and says what waited for it."""
        if self._open is not None:
            block, self._open = self._open, None
            yield Closed(block)
        held, self._held = self._held, []
        for delta in held:
            yield from self.feed(delta)
        if held:
            yield from self.end()

    def _begin(self, kind: type, start: CallStart | None) -> Iterator[Step]:
        self._open = Block(kind, self._count, start)
        self.kinds.add(kind)
        self._count += 1
        yield Opened(self._open)

    def _grow(self, text: str) -> Iterator[Step]:
        if text and self._open is not None:
            self._open.pieces.append(text)
            yield Grown(self._open, text)
