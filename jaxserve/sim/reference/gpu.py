"""A GPU of a deployment, and the events that deployments wait for."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxserve.sim.reference.engine import Engine


@dataclass(eq=False)
class ServingGpu:
    """A GPU of the deployment, with its switch."""

    engine: Engine
    prefills: bool = False
    """whether the GPU prefills in a split."""
    busy: bool = False
    up: bool = True
    down_since_s: float = 0.0
    link_free_s: float = 0.0
    """time from which the link to this GPU is free, s."""
    drain: int = 0
    """number of the drain that goes on."""
    late: bool = False
    """whether the time to drain is over."""


class EventQueue:
    """Events by their time, and among equal times in the order in which they were added."""

    def __init__(self) -> None:
        """Begins empty."""
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self.count = 0
        """events that were ever added."""
        self._interruptions: list[float] = []

    def add(self, time_s: float, handler: Callable[[Any], None], subject: object) -> None:
        """Adds the end of an iteration, which concerns its own GPU alone."""
        self.count += 1
        heapq.heappush(self._events, (time_s, self.count, handler, subject))

    def interrupt(self, time_s: float, handler: Callable[[Any], None], subject: object) -> None:
        """Adds an event that concerns more than one GPU."""
        heapq.heappush(self._interruptions, time_s)
        self.add(time_s, handler, subject)

    @property
    def next_s(self) -> float:
        """Time of the next event; infinite without one."""
        return self._events[0][0] if self._events else math.inf

    def next_interruption_s(self, now_s: float) -> float:
        """Time of the next event after ``now_s`` that concerns more than one GPU."""
        while self._interruptions and self._interruptions[0] <= now_s:
            heapq.heappop(self._interruptions)
        return self._interruptions[0] if self._interruptions else math.inf

    def handle(self, until_s: float) -> None:
        """Handles the events up to a time, those that they add included."""
        while self._events and self._events[0][0] <= until_s:
            _, _, handler, subject = heapq.heappop(self._events)
            handler(subject)
