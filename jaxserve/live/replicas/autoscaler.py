"""What an autoscaler is shown of a running fleet, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol


@dataclass(frozen=True)
class LiveFleet:
    """A fleet at the end of a window; sequences have one entry for every place."""

    window: Mapping[str, Any]
    """answer of the gateway's ``/control/window``."""
    metrics: Mapping[str, Mapping[str, Any]]
    """metrics of every engine by name, or its error."""
    names: Sequence[str]
    in_flight: Sequence[int]
    """requests of the gateway at the engine."""
    named_serving: Sequence[bool]
    """whether the gateway sends new requests there."""
    queued: int
    """requests in the gateway's queue."""
    size: int
    """replicas that run or start, by the actuator: the highest place in use and one more."""

    @cached_property
    def answers(self) -> Sequence[bool]:
        """Whether each engine tells what it does."""
        return [
            self.metrics[name].get("running") is not None
            and self.metrics[name].get("waiting") is not None
            for name in self.names
        ]

    @property
    def serving(self) -> Mapping[str, Mapping[str, Any]]:
        """Metrics of the engines that answer and get new requests, by name."""
        entries = zip(self.names, self.answers, self.named_serving, strict=True)
        return {name: self.metrics[name] for name, up, serving in entries if up and serving}

    @property
    def starting(self) -> int:
        """Replicas that start."""
        return sum(not up for up in self.answers[: self.size])

    @property
    def seconds(self) -> float:
        """Length of the window, s."""
        return self.window["until_s"] - self.window["since_s"]

    @property
    def running(self) -> float:
        """Requests in the batches of the serving engines."""
        return sum(one["running"] for one in self.serving.values())

    @property
    def waiting(self) -> float:
        """Requests that wait at the gateway or in a serving engine."""
        return self.queued + sum(one["waiting"] for one in self.serving.values())


class Autoscaler(Protocol):
    """Answers how many replicas there should be, window after window."""

    @property
    def window_s(self) -> float:
        """Time between two answers, s."""
        ...

    @property
    def most(self) -> int:
        """Greatest number of replicas."""
        ...

    @property
    def slices(self) -> int:
        """Equal parts of a window of which it is told the arrivals."""
        ...

    def wanted(self, state: LiveFleet) -> int:
        """Replicas that it wants after a window.

        Raises:
          InputError: the gateway's answer lacks something.
          ArithmeticError: the answer would be no number.
        """
        ...
