"""Decisions of the operator's language model for a session, one at a time."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from server.players.model_answers import first_object
from server.players.model_budget import Bill, ModelBudget
from server.players.model_settings import ModelSettings, has_key
from server.request_errors import ModelFailure
from server.sessions.programs import Knobs, Window
from server.wire.catalogue import describe_task
from server.wire.schemas import readable

if TYPE_CHECKING:
    from server.players.language_agent import LanguageAgent

_REASON_LENGTH = 400
_REQUEST_S = 30.0
_RETRIES = 1


@dataclass(frozen=True)
class Decision:
    """Knobs that the model chose, its reason and its cost."""

    knobs: Knobs
    reason: str | None
    """the model's own words; None if it gave no reason."""
    model: str
    tokens: int
    """tokens of the exchange."""
    seconds: float


class Operator:
    """Asks the language model that the environment variables configure; for one event loop."""

    def __init__(self, budget: ModelBudget) -> None:
        """Args: budget of the model. Sends nothing yet."""
        self._budget = budget
        self._agent: LanguageAgent | None = None
        self._asked: set[asyncio.Task[Decision]] = set()

    async def decide(self, task: str, windows: Sequence[Window], last: Knobs) -> Decision:
        """Knobs for the next windows of an episode.

        Args:
          windows: the reset's window and all later ones, up to now.
          last: knobs of the last window.

        Raises:
          InputError: there is no key. SpendingLimit: no tokens are left. Overloaded: too many wait.
          ModelFailure: the model gave no usable answer.
        """
        begun = asyncio.Event()
        asked = asyncio.ensure_future(self._spend(task, windows, last, begun))
        self._asked.add(asked)
        asked.add_done_callback(self._settled)
        try:
            # A disconnect does not stop an exchange, whose tokens must be counted.
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if not begun.is_set():
                asked.cancel()
            raise

    def _settled(self, asked: asyncio.Task[Decision]) -> None:
        self._asked.discard(asked)
        # asyncio would report an exception that no caller retrieves.
        _ = asked.cancelled() or asked.exception()

    async def _spend(
        self, task: str, windows: Sequence[Window], last: Knobs, begun: asyncio.Event
    ) -> Decision:
        async with self._budget.spending() as bill:
            begun.set()
            return await asyncio.to_thread(self._ask, task, windows, last, bill)

    def _ask(self, task: str, windows: Sequence[Window], last: Knobs, bill: Bill) -> Decision:
        agent = self._agent = self._agent or _language_agent()
        agent.trace.clear()
        before, started = agent.tokens, time.monotonic()
        agent.settings = dataclasses.replace(agent.settings, max_tokens=before + bill.left)
        shown = [readable(w.observation, w.figures) | {"reward": w.reward} for w in windows]
        try:
            knobs = agent.decide(describe_task(task), shown, last)
        finally:
            bill.tokens = agent.tokens - before
        exchange = agent.trace[-1]
        if exchange["error"] is not None:
            raise ModelFailure(f"the language model gave no decision: {exchange['error']}")
        seconds = round(time.monotonic() - started, 3)
        model = agent.settings.model
        return Decision(knobs, reason_of(exchange["answer"]), model, bill.tokens, seconds)


def is_offered(tokens_left: int, variables: Mapping[str, str] = os.environ) -> bool:
    """Whether clients may use the model: a key is set, and tokens are left."""
    return tokens_left > 0 and has_key(variables)


def reason_of(answer: str) -> str | None:
    """The field ``reason`` of the object that names the knobs, shortened; None if absent."""
    reason = (first_object(answer) or {}).get("reason")
    return reason[:_REASON_LENGTH] if isinstance(reason, str) and reason.strip() else None


def _language_agent() -> LanguageAgent:
    # Importing openai takes seconds, so it happens in the thread of a decision.
    from server.players.language_agent import LanguageAgent

    # Each decision sets its own limit of tokens.
    settings = ModelSettings.from_environment(
        max_seconds=math.inf,
        request_timeout_s=_REQUEST_S,
        retries=_RETRIES,
    )
    return LanguageAgent(settings)
