"""A study's episodes put together: intervals, paired differences, errors of prediction, orders."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.evaluation.episode_statistics import Interval, interval
from jaxserve.live.figures import NAMES, Figures
from jaxserve.studies.live.plan import AGENTS

SIMULATORS = ("fast", "reference")
BAR = 0.10
"""Largest relative error of a prediction."""
FEWEST_STEERED = 0.95
"""Share of the windows in which every agent must have been in force for a run to say anything."""
_PREDICTED = ("goodput_rps", "ttft_mean_s", "itl_mean_s")
"""Figures that the bar is for."""


@dataclass(frozen=True)
class AgentResult:
    """One agent on one deployment, over all repeats; all in the time of the GPU."""

    agent: str
    measured: tuple[Figures, ...]
    predicted: Mapping[str, tuple[Figures, ...]]
    """by simulator."""
    steered: float
    """share of the windows in which it was in force."""
    errors: int
    """requests that ended with an error."""
    late_s: float
    """99th percentile of how late the load generator sent a request, s."""

    def column(self, name: str, simulator: str | None = None) -> NDArray[np.float64]:
        """float64[repeats], a figure as measured, or as predicted."""
        source = self.measured if simulator is None else self.predicted[simulator]
        return np.array([getattr(each, name) for each in source])

    def interval(self, name: str) -> Interval:
        """Of what was measured."""
        return interval(self.column(name))

    def error(self, name: str, simulator: str) -> float:
        """Relative error of the predicted mean over repeats; infinite where that measured is 0."""
        predicted, measured = (
            float(self.column(name, source).mean()) for source in (simulator, None)
        )
        return predicted / measured - 1.0 if measured > 0.0 else math.inf


@dataclass(frozen=True)
class ServerResult:
    """All agents on one deployment."""

    server: str
    title: str
    """of its task, hardware and model."""
    time_dilation: float
    repeats: int
    agents: tuple[AgentResult, ...]
    calibration: tuple[str, ...]
    notes: tuple[str, ...]
    """engine, version and load of the machine, in sentences."""

    def of(self, agent: str) -> AgentResult:
        """One of them."""
        return next(each for each in self.agents if each.agent == agent)

    def gain(self, agent: str, over: str) -> Interval:
        """Difference in measured goodput, requests per second, paired by repeat."""
        return interval(self.of(agent).column("goodput_rps") - self.of(over).column("goodput_rps"))

    @property
    def least_steered(self) -> float:
        """Share of the windows in which its agents were in force, of the one with the least."""
        return min(each.steered for each in self.agents)

    def worst_error(self, simulator: str) -> tuple[str, str, float]:
        """Agent, figure and relative error that is farthest from 0."""
        every = [
            (each.agent, name, each.error(name, simulator))
            for each, name in itertools.product(self.agents, _PREDICTED)
        ]
        return max(every, key=lambda found: abs(found[2]))

    def pairs(self, simulator: str) -> list[AgentPair]:
        """How the simulator orders every two of the agents, beside the real engine."""
        return [self._pair(*both, simulator) for both in itertools.combinations(AGENTS, 2)]

    def _pair(self, first: str, second: str, simulator: str) -> AgentPair:
        columns = [self.of(name).column("goodput_rps", simulator) for name in (first, second)]
        predicted = float((columns[0] - columns[1]).mean())
        return AgentPair(first, second, self.gain(first, second), predicted, self.repeats)


@dataclass(frozen=True)
class AgentPair:
    """Two agents and which of them serves more good requests."""

    first: str
    second: str
    measured: Interval
    """goodput of the first less that of the second, requests per second."""
    predicted: float
    """the same in a simulator."""
    episodes: int
    """that both are means of."""

    @property
    def decided(self) -> bool:
        """Whether the real engine tells them apart; a single episode cannot, as its interval has no
        width."""
        return self.episodes > 1 and not self.measured.low <= 0.0 <= self.measured.high

    @property
    def agrees(self) -> bool:
        """Whether the simulator names the same one as better."""
        return self.measured.mean * self.predicted > 0.0


def orders(pairs: Sequence[AgentPair]) -> tuple[int, int]:
    """Pairs that the engine tells apart, and those of them that the simulator orders alike."""
    decided = [pair for pair in pairs if pair.decided]
    return len(decided), sum(pair.agrees for pair in decided)


def to_json(results: Sequence[ServerResult]) -> list[dict[str, object]]:
    """Every episode's figures."""
    return [dataclasses.asdict(result) for result in results]


assert set(_PREDICTED) <= set(NAMES)
