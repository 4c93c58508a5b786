"""Baselines: scores of agents on every task, played by this server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxserve.errors import InputError
from jaxserve.tasks.spec import task_names
from server.background import BackgroundExecutor, SharedResults, StopSignal
from server.players.agents import Agents, check_agent
from server.players.model_budget import Bill, ModelBudget, Notes
from server.players.model_settings import ModelSettings, model_name
from server.players.playing import InProcess, Turn, play_agent, play_model
from server.sessions.episodes import built_in_task

if TYPE_CHECKING:
    from server.players.language_agent import LanguageAgent

SPLIT = "test"
"""Split whose seeds no agent was trained on."""
_KEPT = 256
"""Cached results."""
_AGENT_S = 300.0
"""Seconds of one agent on all tasks at most."""
_MODEL_S = 900.0


class Baselines:
    """Baselines, each computed once: scores of jaxserve's agents never change, and those of a
    language model cost money."""

    def __init__(
        self, agents: Agents, background: BackgroundExecutor, notes: Notes, budget: ModelBudget
    ) -> None:
        """Args: the server's agents and background threads, notes that keep results of language
        models, and the budget of these."""
        self._agents, self._background, self._notes = agents, background, notes
        self._budget = budget
        self._shared: SharedResults[dict[str, Any]] = SharedResults(_KEPT)

    async def deterministic(
        self, agent: str, seed: int, tasks: tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """Scores of one of jaxserve's agents on one episode of each task; None means all tasks.

        Raises:
          InputError: no such agent. Overloaded: the computation takes too long, or too many wait.
        """
        check_agent(agent)
        chosen = tasks or task_names()

        async def compute(watch: StopSignal) -> dict[str, Any]:
            def play(task: str) -> dict[str, Any]:
                watch.check()
                game = InProcess(task, seed, SPLIT, self._agents)
                return play_agent(game, agent, lambda turn: watch.check())

            results = await self._background.run(score_tasks, chosen, play)
            return summary(agent, seed, SPLIT, results)

        return await self._shared.get((agent, seed, *chosen), compute, _AGENT_S)

    async def known_language_model(
        self, seed: int, tasks: tuple[str, ...] | None = None
    ) -> dict[str, Any]:
        """Kept scores of the server's language model on some tasks; None means all tasks.

        Raises:
          InputError: no result is kept.
        """
        kept = await self._notes.note(_name(seed))
        if kept is None:
            raise InputError(
                f"use_openai is True and no result is kept for seed {seed}; GET spends nothing, so "
                'ask for one by POST /baseline with the body {"use_openai": true}'
            )
        found = json.loads(kept)
        return found if tasks is None else _of_tasks(found, tasks)

    async def language_model(self, seed: int) -> dict[str, Any]:
        """Scores of the language model that the environment variables configure.

        Raises:
          InputError: there is no key. SpendingLimit: no tokens are left. Overloaded: too many wait.
        """
        name = _name(seed)
        kept = await self._notes.note(name)
        if kept is not None:
            return json.loads(kept)

        async def compute(watch: StopSignal) -> dict[str, Any]:
            async with self._budget.spending() as bill:
                return await self._play_model(seed, watch, bill)

        return await self._shared.get(name, compute, _MODEL_S)

    async def _play_model(self, seed: int, watch: StopSignal, bill: Bill) -> dict[str, Any]:
        agent = await self._background.run(_language_agent, bill.left)

        def shown(turn: Turn) -> None:
            del turn
            watch.check()

        def play(task: str) -> dict[str, Any]:
            watch.check()
            return play_model(InProcess(task, seed, SPLIT), agent, task, shown)

        try:
            results = await self._background.run(score_tasks, task_names(), play)
        finally:
            bill.tokens = agent.tokens
        found = summary(agent.settings.model, seed, SPLIT, results)
        # A model that never answered is asked again next time.
        if found["mean_score"] is not None:
            await self._notes.keep_note(_name(seed), json.dumps(found))
        return found


def _name(seed: int) -> str:
    """Key of a kept result; it changes with the model and the versions of the tasks."""
    tasks = ", ".join(f"{task} {built_in_task(task).version}" for task in task_names())
    return f"baseline of {model_name()}, seed {seed}, {tasks}"


def _language_agent(tokens: int) -> LanguageAgent:
    # Importing openai takes seconds, so it happens in a background thread.
    from server.players.language_agent import LanguageAgent

    most = min(tokens, ModelSettings.max_tokens)
    return LanguageAgent(ModelSettings.from_environment(max_tokens=most))


def score_tasks(
    tasks: Sequence[str], play: Callable[[str], dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Results of ``play`` by task; a note in place of the score if ``play`` raises InputError."""
    results = {}
    for task in tasks:
        try:
            results[task] = play(task)
        except InputError as error:
            results[task] = {"score": None, "note": str(error)}
    return results


def _of_tasks(found: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Any]:
    """The part of a summary for some tasks."""
    results = {task: found["baseline"][task]["grader"] for task in tasks}
    return summary(found["agent"], found["seed"], found["split"], results)


def summary(
    agent: str, seed: int, split: str, results: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Results of all tasks with their mean score, also in the fields of earlier projects."""
    scores = {task: result["score"] for task, result in results.items()}
    given = [score for score in scores.values() if score is not None]
    mean = sum(given) / len(given) if given else None
    return {
        "agent": agent,
        "seed": seed,
        "split": split,
        "baseline": {task: {**result, "grader": result} for task, result in results.items()},
        "scores": scores,
        "summary": {"task_count": len(scores), "mean_score": mean, "scores": scores},
        "mean_score": mean,
    }
