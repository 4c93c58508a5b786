"""Comparison of an episode: the same traffic played by jaxserve's agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from jaxserve.errors import InputError
from server.background import BackgroundExecutor, SharedResults, StopSignal
from server.players.agents import Agents
from server.players.playing import InProcess
from server.sessions.episodes import Episode
from server.wire.schemas import action_fields

COMPARISON_AGENTS = ("best_static", "heuristic")
"""Agents that an operator should beat."""
_KEPT = 128
"""Cached episodes, of about 130 kB each."""
_PATIENCE_S = 120.0
"""Seconds of one episode at most, compilation included."""


class ComparisonAgents:
    """Episodes of ``COMPARISON_AGENTS``, played when first requested; for one event loop."""

    def __init__(self, agents: Agents, background: BackgroundExecutor) -> None:
        """Args: the server's agents and background threads."""
        self._agents, self._background = agents, background
        self._shared: SharedResults[bytes] = SharedResults(_KEPT)

    async def of(self, episode: Episode) -> dict[str, bytes]:
        """The episode's task, seed and split played by each comparison agent that can: JSON of a
        ``PlayedColumns`` by agent.

        Raises:
          InputError: the episode changed the task or its rewards.
          Overloaded: the computation takes too long, or too many wait.
        """
        check_unchanged(episode)
        played = {}
        for agent in COMPARISON_AGENTS:

            async def compute(watch: StopSignal, agent: str = agent) -> bytes:
                return await self._background.run(self._play, agent, episode, watch)

            key = (agent, episode.task, episode.seed, episode.split)
            try:
                played[agent] = await self._shared.get(key, compute, _PATIENCE_S)
            except InputError:
                # A task without anchors has no best static setting.
                continue
        return played

    def _play(self, agent: str, episode: Episode, watch: StopSignal) -> bytes:
        game = InProcess(episode.task, episode.seed, episode.split, self._agents)
        observations, figures = [game.observation], [game.figures]
        rewards, actions = [0.0], []
        for turn in game.drive(agent):
            watch.check()
            observations.append(turn.observation)
            figures.append(turn.figures)
            rewards.append(turn.reward)
            actions.append(action_fields(turn.knobs))
        # Entry 0 is the reset, so that there is one action fewer: entry n holds in window n + 1.
        return orjson.dumps(
            {
                "observation": _columns(observations),
                "figures": _columns(figures),
                "reward": rewards,
                "action": actions,
            }
        )


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
