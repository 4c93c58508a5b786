"""Budget of the operator's language model for clients, counted over restarts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from server.request_errors import Overloaded, SpendingLimit

_SPENT = "model_tokens"
_WAITING = 16
"""Requests that wait for the model at most; further ones are refused."""


class Notes(Protocol):
    """Texts by key that outlive the server."""

    async def note(self, key: str) -> str | None: ...

    async def keep_note(self, key: str, text: str) -> None: ...


@dataclass
class Bill:
    """Tokens of one use of the model."""

    left: int
    """tokens that the use may take."""
    tokens: int = 0
    """tokens that it took; the user of the model sets them."""


class ModelBudget:
    """Tokens of all uses; for one event loop."""

    def __init__(self, notes: Notes, most: int) -> None:
        """Args: notes that keep the tokens spent, and tokens in all at most."""
        self._notes, self._most = notes, most
        self._spending = asyncio.Lock()
        self._asked = 0

    async def left(self) -> int:
        """Tokens that may still be spent."""
        return self._most - await self._spent()

    @contextlib.asynccontextmanager
    async def spending(self) -> AsyncIterator[Bill]:
        """Admits one use at a time, so that two cannot spend the same tokens.

        Raises:
          SpendingLimit: none are left. Overloaded: too many wait already.
        """
        if self._asked > _WAITING:
            raise Overloaded(
                f"{self._asked} requests for the language model are under way; try again later"
            )
        self._asked += 1
        try:
            async with self._in_turn() as bill:
                yield bill
        finally:
            self._asked -= 1

    @contextlib.asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[Bill]:
        async with self._spending:
            spent = await self._spent()
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

    async def _spent(self) -> int:
        return int(await self._notes.note(_SPENT) or 0)
