"""The operator's language model in charge of a session, one decision at a time."""

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

if TYPE_CHECKING:
    from server.players.language_agent import LanguageAgent

_REASON_LENGTH = 400
_REQUEST_S = 30.0
_RETRIES = 1


@dataclass(frozen=True)
class Decision:
    """What the model wants of the knobs, and why."""

    knobs: Knobs
    reason: str | None
    """in its own words; None where it gave none."""
    model: str
    tokens: int
    """that the exchange took."""
    seconds: float


class Operator:
    """Asks the model that the server's environment variables name; for use by one event loop."""

    def __init__(self, budget: ModelBudget) -> None:
        """Nothing is sent yet."""
        self._budget = budget
        self._agent: LanguageAgent | None = None
        self._asked: set[asyncio.Task[Decision]] = set()

    async def decide(self, task: str, windows: Sequence[Window], last: Knobs) -> Decision:
        """Knobs for the next windows of an episode.

        Args:
          windows: the reset's first, the last one is now.
          last: the knobs that were held in it.

        Raises:
          InputError: there is no key. SpendingLimit: no tokens are left. Overloaded: too many wait.
          ModelFailure: it gave no answer that can be used.
        """
        begun = asyncio.Event()
        asked = asyncio.ensure_future(self._spend(task, windows, last, begun))
        self._asked.add(asked)
        asked.add_done_callback(self._settled)
        try:
            # To its end even when the client has left: what is spent is written down then.
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if not begun.is_set():
                asked.cancel()
            raise

    def _settled(self, asked: asyncio.Task[Decision]) -> None:
        self._asked.discard(asked)
        # An exception that nobody waits for is no fault of the server.
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
        shown = [window.observation | {"reward": window.reward} for window in windows]
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


def is_offered(model_tokens: int, variables: Mapping[str, str] = os.environ) -> bool:
    """Whether clients may ask for the model: there is a key, and tokens for them."""
    return model_tokens > 0 and has_key(variables)


def reason_of(answer: str) -> str | None:
    """The field ``reason`` of the object that names the knobs, shortened; None where there is
    none."""
    reason = (first_object(answer) or {}).get("reason")
    return reason[:_REASON_LENGTH] if isinstance(reason, str) and reason.strip() else None


def _language_agent() -> LanguageAgent:
    # Importing openai takes seconds, in which nobody else would be answered.
    from server.players.language_agent import LanguageAgent

    # How many tokens it may take is said anew for each decision.
    settings = ModelSettings.from_environment(
        max_seconds=math.inf,
        request_timeout_s=_REQUEST_S,
        retries=_RETRIES,
    )
    return LanguageAgent(settings)
