"""Phases of a deployment's replicas: off, starting, serving, draining; and what is paid for."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from jaxserve.sim.machine.fleet import FleetSettings


class Phase(enum.Enum):
    """Phase of a replica. All but ``OFF`` are paid for."""

    OFF = "off"
    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(eq=False)
class Start:
    """A start-up that goes on."""

    index: int
    ready_s: float
    fails: bool
    cancelled: bool = False


class Replicas:
    """Replicas of a deployment, told once in a window how many are wanted.

    The rules are those of ``jaxserve.sim.fast.fleet``: the start with most of its time ahead is
    cancelled first, the last places drain first, and one replica always serves or starts.

    Args:
      count: places for replicas.
      settings: start-up times and draining; None where all replicas serve all the time.
      serving: replicas that serve at the start; None for all.
      rng: of start-up times and failures.
    """

    def __init__(
        self,
        count: int,
        settings: FleetSettings | None,
        serving: int | None,
        rng: np.random.Generator,
    ) -> None:
        first = count if serving is None else serving
        self.phases = [Phase.SERVING] * first + [Phase.OFF] * (count - first)
        self.serving_s = self.rented_s = 0.0
        self._settings, self._rng = settings, rng
        self._starts: list[Start] = []
        self._noted_s = 0.0

    def count(self, phase: Phase) -> int:
        """Replicas in a phase."""
        return self.phases.count(phase)

    def note(self, now_s: float) -> None:
        """Adds the time since the last call to what has served and what is paid for."""
        seconds = now_s - self._noted_s
        self.serving_s += seconds * self.count(Phase.SERVING)
        self.rented_s += seconds * (len(self.phases) - self.count(Phase.OFF))
        self._noted_s = now_s

    def order(self, wanted: int, now_s: float) -> tuple[list[Start], list[int]]:
        """Says how many replicas are wanted.

        Returns:
          the starts that begin, and the replicas that begin to drain.
        """
        assert self._settings is not None
        self.note(now_s)
        wanted = min(max(wanted, 1), len(self.phases))
        refused = self._rng.random() < self._settings.refused_share
        free = [index for index, phase in enumerate(self.phases) if phase is Phase.OFF]
        up = len(self._starts) + self.count(Phase.SERVING)
        begun = [] if refused else [self._start(i, now_s) for i in free[: max(wanted - up, 0)]]
        drained: list[int] = []
        for _ in range(up - wanted):
            if self._starts:
                start = max(self._starts, key=lambda start: (start.ready_s, start.index))
                start.cancelled = True
                self._starts.remove(start)
                self.phases[start.index] = Phase.OFF
            else:
                index = max(i for i, phase in enumerate(self.phases) if phase is Phase.SERVING)
                self.phases[index] = Phase.DRAINING
                drained.append(index)
        return begun, drained

    def ready(self, start: Start, now_s: float) -> bool:
        """Ends a start-up; whether a replica serves now."""
        self.note(now_s)
        self._starts.remove(start)
        self.phases[start.index] = Phase.OFF if start.fails else Phase.SERVING
        return not start.fails

    def stop(self, index: int, now_s: float) -> None:
        """Stops a draining replica."""
        self.note(now_s)
        self.phases[index] = Phase.OFF

    def _start(self, index: int, now_s: float) -> Start:
        assert self._settings is not None
        span_s = self._rng.uniform(*self._settings.start_s)
        fails = bool(self._rng.random() < self._settings.failing_share)
        start = Start(index, now_s + span_s, fails)
        self._starts.append(start)
        self.phases[index] = Phase.STARTING
        return start
