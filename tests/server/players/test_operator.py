"""A language model in charge of a session: reasons, and a budget that holds whatever happens."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from jaxserve.spaces import DEFAULT_ACTION, OBSERVATION_BOUNDS
from server.players import operator
from server.players.model_budget import ModelBudget
from server.players.model_settings import ModelSettings
from server.players.operator import Decision, Operator, is_offered, reason_of
from server.request_errors import ModelFailure, Overloaded, SpendingLimit
from server.sessions.programs import Window, knobs_of
from tests.patience import PATIENCE_S
from tests.server.players.session_notes import Notes
from tests.server.players.stub_model import KEY, Model

LAST = knobs_of(DEFAULT_ACTION)
WINDOW = Window(dict.fromkeys(OBSERVATION_BOUNDS, 1.0), 0.5, False, {}, 0.0, 0.0, 0.0)
WIDER = knobs_of(DEFAULT_ACTION | {"batch_cap": 96})


class Agent:
    """Takes 60 tokens for a decision; ``error`` is what goes wrong."""

    def __init__(self) -> None:
        self.settings = ModelSettings("m", "key")
        self.tokens = 0
        self.trace: list[dict[str, Any]] = []
        self.error: str | None = None
        self.begun = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def decide(self, task: Any, windows: Any, last: Any) -> Any:
        self.begun.set()
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


async def under_way(one: Operator, agent: Agent) -> asyncio.Task[Decision]:
    """A decision that the model is being asked for, until ``agent.go``."""
    agent.go.clear()
    asked = asyncio.ensure_future(decide(one))
    assert await asyncio.to_thread(agent.begun.wait, PATIENCE_S)
    return asked


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

    async def play() -> None:
        one = Operator(ModelBudget(notes, 100))
        asked = await under_way(one, agent)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        agent.go.set()
        with pytest.raises(SpendingLimit):
            for _ in range(3):
                await decide(one)

    asyncio.run(play())
    assert notes.texts == {"model_tokens": "120"}


def test_a_client_that_leaves_while_it_waits_pays_nothing(agent: Agent) -> None:
    """And keeps nobody from the model, who would pay for it."""
    notes = Notes()

    async def play() -> None:
        one = Operator(ModelBudget(notes, 1000))
        first = await under_way(one, agent)
        waiting = asyncio.ensure_future(decide(one))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        agent.go.set()
        await first
        await decide(one)

    asyncio.run(play())
    assert notes.texts == {"model_tokens": "120"}


def test_more_than_may_wait_are_told_to_come_back(agent: Agent) -> None:
    """Whatever they wait for; and places of those that have left are free."""

    async def play() -> None:
        budget = ModelBudget(Notes(), 1000)
        one = Operator(budget)
        first = await under_way(one, agent)
        waiting = [asyncio.ensure_future(decide(one)) for _ in range(16)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="17 requests for the language model are under way"):
            await asyncio.wait_for(decide(Operator(budget)), PATIENCE_S)
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        last = asyncio.ensure_future(decide(one))
        agent.go.set()
        await asyncio.gather(first, last)

    asyncio.run(play())
    assert agent.tokens == 120


def test_what_is_left_of_the_budget_bounds_a_decision(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that has begun is finished; what was wrong with its answer is not asked again."""
    for name, text in (("OPENAI_API_KEY", KEY), ("API_BASE_URL", model.url)):
        monkeypatch.setenv(name, text)
    notes = Notes()
    model.answers = ["no JSON"]

    async def play() -> None:
        one = Operator(ModelBudget(notes, 250))
        for _ in range(2):
            with pytest.raises(ModelFailure):
                await one.decide("static_workload", [WINDOW], LAST)
        with pytest.raises(SpendingLimit):
            await one.decide("static_workload", [WINDOW], LAST)

    asyncio.run(play())
    assert (len(model.asked), notes.texts) == (3, {"model_tokens": "300"})


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


def test_the_budget_says_what_is_left(agent: Agent) -> None:
    """Not below what a decision has taken."""

    async def play() -> list[int]:
        budget = ModelBudget(Notes(), 100)
        found = [await budget.left()]
        await decide(Operator(budget))
        return [*found, await budget.left()]

    assert asyncio.run(play()) == [100, 40]
