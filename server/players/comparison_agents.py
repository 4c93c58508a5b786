"""Comparison of an episode: the same traffic played by jaxserve's agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.errors import InputError
from server.background import BackgroundExecutor, SharedResults, StopSignal
from server.players.agents import Agents
from server.players.playing import InProcess
from server.sessions.episodes import Episode
from server.sessions.programs import Knobs

COMPARISON_AGENTS = ("best_static", "heuristic")
"""Agents that an operator should beat."""
_KEPT = 128
"""Cached episodes, of about 100 kB each."""
_PATIENCE_S = 120.0
"""Seconds of one episode at most, compilation included."""


@dataclass(frozen=True)
class PlayedEpisode:
    """A whole episode, column by column; entry 0 is the reset."""

    observation: dict[str, list[Any]]
    """columns of ServeObservation's fields."""
    figures: dict[str, list[float]]
    """columns of ``programs.window_figures``."""
    reward: list[float]
    knobs: list[Knobs]
    """one fewer than rewards: entry n holds in window n + 1."""


class ComparisonAgents:
    """Episodes of ``COMPARISON_AGENTS``, played when first requested; for one event loop."""

    def __init__(self, agents: Agents, background: BackgroundExecutor) -> None:
        """Args: the server's agents and background threads."""
        self._agents, self._background = agents, background
        self._shared: SharedResults[PlayedEpisode] = SharedResults(_KEPT)

    async def of(self, episode: Episode) -> dict[str, PlayedEpisode]:
        """The episode's task, seed and split played by each comparison agent that can.

        Raises:
          InputError: the episode changed the task or its rewards.
          Overloaded: the computation takes too long, or too many wait.
        """
        check_unchanged(episode)
        played = {}
        for agent in COMPARISON_AGENTS:

            async def compute(watch: StopSignal, agent: str = agent) -> PlayedEpisode:
                return await self._background.run(self._play, agent, episode, watch)

            key = (agent, episode.task, episode.seed, episode.split)
            try:
                played[agent] = await self._shared.get(key, compute, _PATIENCE_S)
            except InputError:
                # A task without anchors has no best static setting.
                continue
        return played

    def _play(self, agent: str, episode: Episode, watch: StopSignal) -> PlayedEpisode:
        game = InProcess(episode.task, episode.seed, episode.split, self._agents)
        observations, figures = [game.observation], [game.figures]
        rewards, knobs = [0.0], []
        for turn in game.drive(agent):
            watch.check()
            observations.append(turn.observation)
            figures.append(turn.figures)
            rewards.append(turn.reward)
            knobs.append(turn.knobs)
        return PlayedEpisode(_columns(observations), _columns(figures), rewards, knobs)


def check_unchanged(episode: Episode) -> None:
    """Raises InputError if the episode changed its task."""
    changed = episode.weights | episode.overrides
    if changed:
        raise InputError(
            f"the episode changed {', '.join(sorted(changed))} of {episode.task}; only the task as "
            "it is can be compared"
        )


def _columns(windows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list over the windows for each name of the first, by its name."""
    return {name: [window[name] for window in windows] for name in windows[0]}
