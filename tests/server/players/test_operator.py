"""A language model in charge of a session: reasons, and a budget that holds whatever happens."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jaxserve.spaces import DEFAULT_ACTION
from server.players import operator
from server.players.model_budget import ModelBudget
from server.players.operator import Decision, Operator, is_offered, reason_of
from server.problems import ModelFailure, SpendingLimit
from server.sessions.programs import knobs_of
from tests.server.players.notes import Notes

LAST = knobs_of(DEFAULT_ACTION)
WIDER = knobs_of(DEFAULT_ACTION | {"batch_cap": 96})


class Agent:
    """Takes 60 tokens for a decision; ``error`` is what goes wrong."""

    def __init__(self) -> None:
        self.settings = SimpleNamespace(model="m")
        self.tokens = 0
        self.trace: list[dict[str, Any]] = []
        self.error: str | None = None
        self.go = threading.Event()
        self.go.set()

    def decide(self, task: Any, windows: Any, last: Any) -> Any:
        assert self.go.wait(300.0)
        self.tokens += 60
        answer = json.dumps({"reason": "the queue grows", "batch_cap": 96})
        self.trace.append({"answer": answer, "error": self.error})
        return WIDER


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent()
    monkeypatch.setattr(operator, "_language_agent", lambda: made)
    return made


async def decide(one: Operator) -> Decision:
    return await one.decide("static_workload", [], LAST)


def test_a_decision_has_its_reason_and_its_price(agent: Agent) -> None:
    """And the next one, beyond the budget, is refused: also after a restart."""
    notes = Notes()

    async def play() -> None:
        decision = await decide(Operator(ModelBudget(notes, 100)))
        assert (decision.knobs, decision.reason) == (WIDER, "the queue grows")
        assert (decision.model, decision.tokens) == ("m", 60)
        again = Operator(ModelBudget(notes, 100))
        assert (await decide(again)).tokens == 60
        with pytest.raises(SpendingLimit, match=r"may spend 100 tokens .* and has spent 120"):
            await decide(again)

    asyncio.run(play())
    assert agent.tokens == 120


def test_a_failure_is_said_and_paid(agent: Agent) -> None:
    """No knobs are held in the name of a model that gave no answer."""
    agent.error, notes = "status 401 of AuthenticationError", Notes()

    async def play() -> None:
        with pytest.raises(ModelFailure, match="gave no decision: status 401"):
            await decide(Operator(ModelBudget(notes, 100)))

    asyncio.run(play())
    assert notes.texts == {"model_tokens": "60"}


def test_a_client_that_leaves_pays(agent: Agent) -> None:
    """What is under way is spent, and written down."""
    notes = Notes()
    agent.go.clear()

    async def play() -> None:
        one = Operator(ModelBudget(notes, 100))
        asked = asyncio.ensure_future(decide(one))
        await asyncio.sleep(0.01)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        agent.go.set()
        with pytest.raises(SpendingLimit):
            for _ in range(3):
                await decide(one)

    asyncio.run(play())
    assert notes.texts == {"model_tokens": "120"}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"reason": "calm"}', "calm"),
        ('so: {"reason": "' + "x" * 500 + '"}', "x" * 400),
        ('{"reason": 5}', None),
        ('<think>{"a": 1} hm</think>{"batch_cap": 8, "reason": "calm"} and {so on}', "calm"),
        ('{"seen": 1} {"batch_cap": 8, "reason": "calm"}', "calm"),
        ('{"batch_cap": 5}', None),
        ("no JSON", None),
    ],
)
def test_reasons(answer: str, reason: str | None) -> None:
    """Text of the answer's own, of bounded length."""
    assert reason_of(answer) == reason


def test_a_model_is_offered_with_key_and_tokens_only() -> None:
    """A page without a choice that would be refused."""
    key = {"OPENAI_API_KEY": "x"}
    assert is_offered(1, key) and is_offered(1, {"HF_TOKEN": "x"})
    assert not is_offered(0, key) and not is_offered(1, {})
