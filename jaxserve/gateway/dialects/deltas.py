"""Deltas: pieces of a model's answer, for streams and for whole answers."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxserve.gateway.dialects.canonical import Completion, CompletionChoice, Counts, ToolCall


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More reasoning."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """More text."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """More of a refusal."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Start of a tool call."""

    choice: int
    call: int
    """number of the call in its choice."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of a tool call."""

    choice: int
    call: int
    text: str


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities of more tokens."""

    choice: int
    entries: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """End of a choice."""

    choice: int
    reason: str
    stop: str | None = None
    """stop sequence that ended the choice."""


Delta = Reasoning | Text | Refusal | CallStart | Arguments | Logprobs | Finish | Counts


class EventWriter(abc.ABC):
    """Writes deltas as the events of a dialect."""

    events = 0
    """events written so far, for the number of an error event."""

    def feed(self, deltas: Iterable[Delta]) -> bytes:
        """Events of several deltas."""
        return b"".join(map(self._delta, deltas))

    @abc.abstractmethod
    def end(self) -> bytes:
        """Events that close a stream after a complete answer of the engine."""

    @abc.abstractmethod
    def _delta(self, delta: Delta) -> bytes:
        """Events of one delta; may be empty."""


@dataclass(slots=True)
class _PartialChoice:
    """Deltas of one choice so far."""

    texts: dict[type, list[str]] = field(
        default_factory=lambda: {Reasoning: [], Text: [], Refusal: []}
    )
    calls: dict[int, tuple[CallStart, list[str]]] = field(default_factory=dict)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None

    def add(self, delta: Delta) -> None:
        """Adds a delta."""
        match delta:
            case Reasoning() | Text() | Refusal():
                self.texts[type(delta)].append(delta.text)
            case CallStart():
                self.calls.setdefault(delta.call, (delta, []))
            case Arguments():
                self.calls[delta.call][1].append(delta.text)
            case Logprobs():
                self.logprobs += delta.entries
            case Finish():
                self.finish, self.stop = delta.reason, delta.stop

    def choice(self, index: int) -> CompletionChoice:
        """The choice so far."""
        return CompletionChoice(
            index=index,
            text="".join(self.texts[Text]),
            reasoning="".join(self.texts[Reasoning]),
            refusal="".join(self.texts[Refusal]),
            calls=tuple(
                ToolCall(start.id, start.name, "".join(pieces))
                for _, (start, pieces) in sorted(self.calls.items())
            ),
            finish=self.finish,
            stop=self.stop,
            logprobs=tuple(self.logprobs),
        )


class CompletionAccumulator:
    """Builds a completion from deltas.

    The start of a call precedes its arguments; later counts replace earlier ones.
    """

    def __init__(self) -> None:
        self._choices: dict[int, _PartialChoice] = {}
        self._counts = Counts()

    def add(self, deltas: Iterable[Delta]) -> None:
        """Adds deltas."""
        for delta in deltas:
            if isinstance(delta, Counts):
                self._counts = delta
            else:
                self._choices.setdefault(delta.choice, _PartialChoice()).add(delta)

    @property
    def completion(self) -> Completion:
        """The completion so far."""
        choices = (partial.choice(index) for index, partial in sorted(self._choices.items()))
        return Completion(tuple(choices), self._counts)


def fold(deltas: Iterable[Delta]) -> Completion:
    """Completion of all deltas, see ``CompletionAccumulator``."""
    accumulator = CompletionAccumulator()
    accumulator.add(deltas)
    return accumulator.completion


def deltas_of(completion: Completion) -> Iterator[Delta]:
    """Deltas of a whole completion, the inverse of ``fold``."""
    for choice in completion.choices:
        at = choice.index
        if choice.reasoning:
            yield Reasoning(at, choice.reasoning)
        # At least one delta per choice, so that an empty choice remains.
        yield Text(at, choice.text)
        if choice.refusal:
            yield Refusal(at, choice.refusal)
        for number, call in enumerate(choice.calls):
            yield CallStart(at, number, call.id, call.name)
            yield Arguments(at, number, call.arguments)
        if choice.logprobs:
            yield Logprobs(at, choice.logprobs)
        if choice.finish is not None:
            yield Finish(at, choice.finish, choice.stop)
    if completion.counts != Counts():
        yield completion.counts
