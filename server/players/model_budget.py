"""What clients may spend on the operator's language model, counted over restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from server.problems import SpendingLimit

_SPENT = "model_tokens"


class Notes(Protocol):
    """What outlives the server: texts by name."""

    async def note(self, key: str) -> str | None: ...

    async def keep_note(self, key: str, text: str) -> None: ...


@dataclass
class Bill:
    """Of one use of the model."""

    left: int
    """tokens that it may take."""
    tokens: int = 0
    """that it took; whoever uses the model writes them down."""


class ModelBudget:
    """Tokens of all uses together; for use by one event loop."""

    def __init__(self, notes: Notes, most: int) -> None:
        """Args: where what was spent is kept, and the tokens that may be spent in all."""
        self._notes, self._most = notes, most
        self._spending = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def spending(self) -> AsyncIterator[Bill]:
        """One use at a time, so that two cannot spend the same tokens.

        Raises:
          SpendingLimit: none are left.
        """
        async with self._spending:
            spent = int(await self._notes.note(_SPENT) or 0)
            if spent >= self._most:
                raise SpendingLimit(
                    f"this server may spend {self._most:,} tokens on a language model for others "
                    f"and has spent {spent:,}; its operator sets JAXSERVE_MODEL_TOKENS"
                )
            bill = Bill(self._most - spent)
            try:
                yield bill
            finally:
                await self._notes.keep_note(_SPENT, str(spent + bill.tokens))
