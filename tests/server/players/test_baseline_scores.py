"""Baselines: what costs the operator money is asked for, limited and kept."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.tasks.spec import task_names
from server.background import Abandoned, BackgroundExecutor
from server.players import baseline_scores
from server.players.agents import Agents
from server.players.baseline_scores import Baselines
from server.players.model_budget import ModelBudget
from server.request_errors import SpendingLimit
from tests.server.players.session_notes import Notes


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Budgets with which a model was asked; each run spends 10 tokens of it on every task."""
    budgets: list[int] = []

    def agent(tokens: int) -> Any:
        budgets.append(tokens)
        return SimpleNamespace(tokens=0, settings=SimpleNamespace(model="m"))

    def play(game: Any, agent: Any, task: str, shown: Callable[[Any], None]) -> dict[str, Any]:
        agent.tokens += 10
        shown(None)
        return {"score": 0.5}

    monkeypatch.setattr(baseline_scores, "_language_agent", agent)
    monkeypatch.setattr(baseline_scores, "play_model", play)
    monkeypatch.setattr(baseline_scores, "InProcess", lambda *_: None)
    return budgets


def test_a_model_is_asked_once_for_each_seed_within_its_budget(
    notes: Notes, asked: list[int]
) -> None:
    """Results outlive the server; what is spent is counted over its restarts."""
    run = 10 * len(task_names())
    enough = run + 40

    def baselines(tokens: int = enough) -> Baselines:
        return Baselines(Agents(), BackgroundExecutor(), notes, ModelBudget(notes, tokens))

    async def play() -> None:
        with pytest.raises(InputError, match="ask for one by POST"):
            await baselines().known_language_model(1)
        assert asked == []
        found = await baselines().language_model(1)
        assert found["mean_score"] == 0.5
        assert await baselines().language_model(1) == found
        assert await baselines().known_language_model(1) == found
        one = await baselines().known_language_model(1, ("bursty_workload",))
        assert one["baseline"] == {"bursty_workload": found["baseline"]["bursty_workload"]}
        assert one["scores"] == one["summary"]["scores"] == {"bursty_workload": 0.5}
        assert one | {key: found[key] for key in ("baseline", "scores", "summary")} == found
        assert asked == [enough]
        await baselines().language_model(2)
        assert asked == [enough, 40]
        with pytest.raises(SpendingLimit, match=f"may spend {enough} tokens"):
            await baselines().language_model(3)
        with pytest.raises(SpendingLimit, match="may spend 0 tokens"):
            await baselines(0).language_model(3)

    asyncio.run(play())


def test_a_result_is_kept_of_one_model_and_its_tasks(
    notes: Notes, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another model, and a task that has changed since, are played anew."""

    async def play() -> None:
        baselines = Baselines(Agents(), BackgroundExecutor(), notes, ModelBudget(notes, 1000))
        for model in ("one", "another", "one"):
            monkeypatch.setenv("MODEL_NAME", model)
            await baselines.language_model(1)
        assert len(asked) == 2
        newer = SimpleNamespace(version=1000)
        monkeypatch.setattr(baseline_scores, "built_in_task", lambda task: newer)
        with pytest.raises(InputError, match="no result is kept for seed 1"):
            await baselines.known_language_model(1)
        await baselines.language_model(1)
        assert len(asked) == 3

    asyncio.run(play())


def test_a_model_stops_when_its_client_leaves(
    notes: Notes, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it has spent until then is counted."""
    begun, ended = threading.Event(), threading.Event()

    def play(game: Any, agent: Any, task: str, shown: Callable[[Any], None]) -> dict[str, Any]:
        agent.tokens += 10
        begun.set()
        try:
            while not ended.wait(0.001):
                shown(None)
        except Abandoned:
            ended.set()
            raise
        return {}

    monkeypatch.setattr(baseline_scores, "play_model", play)

    async def leave() -> None:
        baselines = Baselines(Agents(), BackgroundExecutor(), notes, ModelBudget(notes, 100))
        request = asyncio.ensure_future(baselines.language_model(1))
        assert await asyncio.to_thread(begun.wait, 60.0)
        request.cancel()
        assert await asyncio.to_thread(ended.wait, 60.0)
        while not notes.texts:
            await asyncio.sleep(0.001)
        assert notes.texts == {"model_tokens": "10"}

    asyncio.run(leave())
