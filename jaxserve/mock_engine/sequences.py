"""Requests in flight: what the engine has made of them, and who waits for it."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from jaxserve.mock_engine.outputs import Output, PseudoModel
from jaxserve.mock_engine.requests import CompletionRequest
from jaxserve.sim.reference.request import Request


class Span(NamedTuple):
    """Tokens of one output that came together."""

    index: int
    """of the output in its call."""
    start: int
    stop: int


class Sequence:
    """One output on its way through the engine."""

    def __init__(self, call: SequenceGroup, index: int, output: Output) -> None:
        """Args: whose it is, its place there, and what it will say."""
        self.call = call
        self.index = index
        self.output = output
        self.told = 0
        """tokens that have been handed to the call."""
        self.last_s = math.nan
        """engine time of the latest of them."""
        self.request: Request
        """in the engine; set when it is submitted."""

    @property
    def length(self) -> int:
        """Tokens of the whole output."""
        return len(self.output.tokens)


class SequenceGroup:
    """One HTTP request: outputs for one or several prompts."""

    def __init__(self, asked: CompletionRequest, model: PseudoModel) -> None:
        """Args: what it asks for, and who knows the answer."""
        self.asked = asked
        self.sequences: list[Sequence] = []
        for prompt, sampling in zip(asked.prompts, asked.samplings, strict=True):
            for choice in range(asked.choices):
                output = model.output(prompt, sampling, choice)
                self.sequences.append(Sequence(self, len(self.sequences), output))
        self.left = False
        """whether its client has gone."""
        self.failure: Exception | None = None
        """why it cannot be finished."""
        self._missing = len(self.sequences)
        self._news: list[Span] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every output is complete."""
        return self._missing == 0

    def prompt_of(self, index: int) -> list[int]:
        """The prompt of output ``index``."""
        return self.asked.prompts[index // self.asked.choices]

    def advance(self, sequence: Sequence, upto: int) -> None:
        """An output has ``upto`` tokens now."""
        self._missing -= upto == sequence.length
        if self.asked.stream:
            self._news.append(Span(sequence.index, sequence.told, upto))
        sequence.told = upto
        if self.asked.stream or self.finished:
            self._wake()

    def leave(self) -> None:
        """Its client has gone."""
        self.left = True
        self._wake()

    def fail(self, failure: Exception) -> None:
        """It cannot be finished."""
        self.failure = failure
        self._wake()

    async def news(self) -> list[Span]:
        """What has come since the last call; nothing where nobody streams, or is there any more.

        Raises:
          Exception: the call cannot be finished.
        """
        if not (self._news or self.finished or self.left or self.failure):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.failure:
            raise self.failure
        news, self._news = self._news, []
        return news

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
