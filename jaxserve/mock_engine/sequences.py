"""Requests in flight: the sequences that the engine generates for each, and their waiters."""

from __future__ import annotations

import asyncio
import math
from typing import NamedTuple

from jaxserve.mock_engine.outputs import Output, PseudoModel, SamplingParams
from jaxserve.mock_engine.requests import CompletionRequest
from jaxserve.sim.reference.request import Request


class Span(NamedTuple):
    """Consecutive tokens of one output that arrive together."""

    index: int
    """place of the output in its group."""
    start: int
    stop: int


class Sequence:
    """One output on its way through the engine."""

    def __init__(self, group: SequenceGroup, index: int, output: Output) -> None:
        """Args: its group, its place in the group, and its whole output."""
        self.group = group
        self.index = index
        self.output = output
        self.sent = 0
        """tokens handed to the group so far."""
        self.last_s = math.nan
        """engine time of the latest token, s."""
        self.request: Request
        """request in the reference simulator's engine; set on submission."""

    @property
    def length(self) -> int:
        """Tokens of the whole output."""
        return len(self.output.tokens)


class SequenceGroup:
    """All sequences of one HTTP request, for one or several prompts."""

    def __init__(self, asked: CompletionRequest, model: PseudoModel) -> None:
        """Args: the parsed request, and the model that draws its outputs."""
        self.asked = asked
        self.sequences: list[Sequence] = []
        for prompt, sampling in zip(asked.prompts, asked.samplings, strict=True):
            for choice in range(asked.choices):
                output = model.output(prompt, sampling, choice)
                self.sequences.append(Sequence(self, len(self.sequences), output))
        self.disconnected = False
        """whether the client has disconnected."""
        self.failure: Exception | None = None
        """reason why the group cannot finish."""
        self._unfinished = len(self.sequences)
        self._new: list[Span] = []
        self._waiter: asyncio.Future[None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every output is complete."""
        return self._unfinished == 0

    def prompt_of(self, index: int) -> list[int]:
        """The prompt of output ``index``."""
        return self.asked.prompts[index // self.asked.choices]

    def sampling_of(self, index: int) -> SamplingParams:
        """The sampling parameters of output ``index``."""
        return self.asked.samplings[index // self.asked.choices]

    def longest(self, index: int) -> Sequence:
        """The first of the longest outputs to the prompt of output ``index``."""
        first = index - index % self.asked.choices
        alike = self.sequences[first : first + self.asked.choices]
        return max(alike, key=lambda sequence: sequence.length)

    def advance(self, sequence: Sequence, upto: int) -> None:
        """Hands over the tokens of a sequence up to number ``upto``."""
        self._unfinished -= upto == sequence.length
        if self.asked.stream:
            self._new.append(Span(sequence.index, sequence.sent, upto))
        sequence.sent = upto
        if self.asked.stream or self.finished:
            self._wake()

    def disconnect(self) -> None:
        """Notes that the client has disconnected."""
        self.disconnected = True
        self._wake()

    def fail(self, failure: Exception) -> None:
        """Notes that the group cannot finish."""
        self.failure = failure
        self._wake()

    async def new_spans(self) -> list[Span]:
        """Waits for tokens and returns all that came since the last call.

        Without streaming the list is empty and the group is finished; after a disconnect it may be
        empty as well.

        Raises:
          Exception: the group cannot finish.
        """
        if not (self._new or self.finished or self.disconnected or self.failure):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.failure:
            raise self.failure
        spans, self._new = self._new, []
        return spans

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
