"""Scores of agents on every task, played by this server for comparison."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxserve.errors import InputError
from jaxserve.tasks.spec import task_names
from server.players.agents import Agents, check_agent
from server.players.playing import InProcess, play_agent, play_model

if TYPE_CHECKING:
    from server.players.language_agent import LanguageAgent

SPLIT = "test"
"""Seeds that no agent was trained on."""


class Baselines:
    """Those of jaxserve's agents are computed once for each agent and seed: they never change."""

    def __init__(self, agents: Agents) -> None:
        """Args: loaded agents, shared with the rest of the server."""
        self._agents = agents
        self._known: dict[tuple[str, int], dict[str, Any]] = {}
        self._lock = asyncio.Lock()

    async def deterministic(self, agent: str, seed: int) -> dict[str, Any]:
        """An agent of jaxserve on one episode of every task.

        Raises:
          InputError: no such agent.
        """
        check_agent(agent)

        def play(task: str) -> dict[str, Any]:
            return play_agent(InProcess(task, seed, SPLIT, self._agents), agent)

        async with self._lock:
            if (agent, seed) not in self._known:
                results = await asyncio.to_thread(score_tasks, task_names(), play)
                self._known[agent, seed] = summary(agent, seed, SPLIT, results)
        return self._known[agent, seed]

    async def language_model(self, seed: int) -> dict[str, Any]:
        """A language model, configured by the server's environment variables.

        Raises:
          InputError: there is no key.
        """
        agent = await asyncio.to_thread(_language_agent)

        def play(task: str) -> dict[str, Any]:
            return play_model(InProcess(task, seed, SPLIT), agent, task)

        async with self._lock:
            results = await asyncio.to_thread(score_tasks, task_names(), play)
        return summary(agent.settings.model, seed, SPLIT, results)


def _language_agent() -> LanguageAgent:
    # Importing openai takes seconds, in which nobody else would be answered.
    from server.players.language_agent import LanguageAgent, ModelSettings

    return LanguageAgent(ModelSettings.from_environment())


def score_tasks(
    tasks: Sequence[str], play: Callable[[str], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """What ``play`` returns for each task; a note instead of a score where a task has none."""
    results = {}
    for task in tasks:
        try:
            results[task] = play(task)
        except InputError as error:
            results[task] = {"score": None, "note": str(error)}
    return results


def summary(
    agent: str, seed: int, split: str, results: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Results of all tasks with their mean score."""
    scores = [result["score"] for result in results.values() if result["score"] is not None]
    return {
        "agent": agent,
        "seed": seed,
        "split": split,
        "baseline": dict(results),
        "mean_score": sum(scores) / len(scores) if scores else None,
    }
