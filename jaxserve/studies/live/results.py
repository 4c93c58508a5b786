"""Results of a study: intervals, paired differences, errors of prediction, orders of agents."""

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
"""Least share of windows under every agent's control in a valid run."""
_PREDICTED = ("goodput_rps", "ttft_mean_s", "itl_mean_s")
"""Figures that the bar applies to."""


@dataclass(frozen=True)
class AgentResult:
    """One agent on one deployment over all repeats, in the GPU's time."""

    agent: str
    """name of the agent."""
    measured: tuple[Figures, ...]
    """measured figures of each repeat."""
    predicted: Mapping[str, tuple[Figures, ...]]
    """predicted figures of each repeat, by simulator."""
    steered: float
    """share of the windows under the agent's knobs."""
    errors: int
    """requests that ended with an error."""
    late_s: float
    """99th percentile of the load generator's delay, s."""

    def column(self, name: str, simulator: str | None = None) -> NDArray[np.float64]:
        """A figure of each repeat, float64[repeats]: measured, or predicted by a simulator."""
        source = self.measured if simulator is None else self.predicted[simulator]
        return np.array([getattr(each, name) for each in source])

    def interval(self, name: str) -> Interval:
        """Mean of a measured figure over repeats, with its interval."""
        return interval(self.column(name))

    def error(self, name: str, simulator: str) -> float:
        """Relative error of the predicted mean over repeats; infinite if the measured mean is 0."""
        predicted, measured = (
            float(self.column(name, source).mean()) for source in (simulator, None)
        )
        return predicted / measured - 1.0 if measured > 0.0 else math.inf


@dataclass(frozen=True)
class ServerResult:
    """All agents on one deployment."""

    server: str
    """name of the server."""
    title: str
    """model, hardware and title of the task."""
    time_dilation: float
    """factor on the emulated GPU's times."""
    repeats: int
    """number of test episodes."""
    agents: tuple[AgentResult, ...]
    """results of each agent."""
    calibration: tuple[str, ...]
    """sentences of the calibration."""
    notes: tuple[str, ...]
    """sentences on engine, version and load of the machine."""

    def of(self, agent: str) -> AgentResult:
        """Result of an agent."""
        return next(each for each in self.agents if each.agent == agent)

    def gain(self, agent: str, over: str) -> Interval:
        """Difference of measured goodput, requests per second, paired by repeat."""
        return interval(self.of(agent).column("goodput_rps") - self.of(over).column("goodput_rps"))

    @property
    def least_steered(self) -> float:
        """Least share of windows under an agent's knobs, over all agents."""
        return min(each.steered for each in self.agents)

    def worst_error(self, simulator: str) -> tuple[str, str, float]:
        """Agent and figure with the relative error farthest from 0, and that error."""
        every = [
            (each.agent, name, each.error(name, simulator))
            for each, name in itertools.product(self.agents, _PREDICTED)
        ]
        return max(every, key=lambda found: abs(found[2]))

    def pairs(self, simulator: str) -> list[AgentPair]:
        """Order of every two agents in the simulator and on the real engine."""
        return [self._pair(*both, simulator) for both in itertools.combinations(AGENTS, 2)]

    def _pair(self, first: str, second: str, simulator: str) -> AgentPair:
        columns = [self.of(name).column("goodput_rps", simulator) for name in (first, second)]
        predicted = float((columns[0] - columns[1]).mean())
        return AgentPair(first, second, self.gain(first, second), predicted, self.repeats)


@dataclass(frozen=True)
class AgentPair:
    """Two agents and the order of their goodput."""

    first: str
    """name of the first agent."""
    second: str
    """name of the second agent."""
    measured: Interval
    """measured goodput of the first less that of the second, requests per second."""
    predicted: float
    """difference of goodput in a simulator, requests per second."""
    episodes: int
    """episodes behind both differences."""

    @property
    def decided(self) -> bool:
        """Whether the real engine tells the agents apart; the interval of a single episode has no
        width and never does."""
        return self.episodes > 1 and not self.measured.low <= 0.0 <= self.measured.high

    @property
    def agrees(self) -> bool:
        """Whether the simulator names the same agent as better."""
        return self.measured.mean * self.predicted > 0.0


def orders(pairs: Sequence[AgentPair]) -> tuple[int, int]:
    """Number of pairs that the engine tells apart, and of those that the simulator orders alike."""
    decided = [pair for pair in pairs if pair.decided]
    return len(decided), sum(pair.agrees for pair in decided)


def to_json(results: Sequence[ServerResult]) -> list[dict[str, object]]:
    """JSON data with the figures of every episode."""
    return [dataclasses.asdict(result) for result in results]


assert set(_PREDICTED) <= set(NAMES)
