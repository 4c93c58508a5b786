"""One algebra of what a model says piece by piece, for streams and for whole answers."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxserve.gateway.dialects.canonical import Choice, Completion, Counts, ToolCall


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of what it says."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """More of why it says nothing else."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """It begins to call a function."""

    choice: int
    call: int
    """which of the choice's calls."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments."""

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
    """A choice has ended."""

    choice: int
    reason: str
    stop: str | None = None
    """the stop sequence that ended it."""


Delta = Reasoning | Text | Refusal | CallStart | Arguments | Logprobs | Finish | Counts


class EventWriter(abc.ABC):
    """Deltas on their way to a client, in the events of its dialect."""

    events = 0
    """written so far, for the number of an error among them."""

    def feed(self, deltas: Iterable[Delta]) -> bytes:
        """Events of some deltas."""
        return b"".join(map(self._delta, deltas))

    @abc.abstractmethod
    def end(self) -> bytes:
        """Events that close the stream, once the engine has ended its own as it should."""

    @abc.abstractmethod
    def _delta(self, delta: Delta) -> bytes:
        """Events of one, if any."""


@dataclass(slots=True)
class _Growing:
    """A choice that is not done."""

    texts: dict[type, list[str]] = field(
        default_factory=lambda: {Reasoning: [], Text: [], Refusal: []}
    )
    calls: dict[int, tuple[CallStart, list[str]]] = field(default_factory=dict)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None

    def add(self, delta: Delta) -> None:
        """Takes a delta."""
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

    def done(self, index: int) -> Choice:
        """What has come of it."""
        return Choice(
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


class Folding:
    """What deltas come to, while they come. A call's start comes before its arguments; later counts
    replace earlier ones."""

    def __init__(self) -> None:
        self._growing: dict[int, _Growing] = {}
        self._counts = Counts()

    def add(self, deltas: Iterable[Delta]) -> None:
        """Takes some more."""
        for delta in deltas:
            if isinstance(delta, Counts):
                self._counts = delta
            else:
                self._growing.setdefault(delta.choice, _Growing()).add(delta)

    @property
    def completion(self) -> Completion:
        """All of it so far."""
        choices = (one.done(index) for index, one in sorted(self._growing.items()))
        return Completion(tuple(choices), self._counts)


def fold(deltas: Iterable[Delta]) -> Completion:
    """What deltas come to, see ``Folding``."""
    folding = Folding()
    folding.add(deltas)
    return folding.completion


def deltas_of(completion: Completion) -> Iterator[Delta]:
    """Deltas that fold to a completion."""
    for choice in completion.choices:
        at = choice.index
        if choice.reasoning:
            yield Reasoning(at, choice.reasoning)
        # At least one, so that an empty choice is not forgotten.
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
