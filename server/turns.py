"""Turns of clients."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The client of the request under way; the middleware sets it."""

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue in which clients take turns, so that many items of one do not delay those of others.

    Items of one client keep their order. The queue is not safe to use from several threads.
    """

    def __init__(self) -> None:
        """The queue is empty."""
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """items by client; the client whose turn is next comes first."""

    def add(self, client: str, item: T) -> None:
        """Appends an item to those of its client."""
        self._waiting.setdefault(client, deque()).append(item)

    def pop(self) -> T:
        """Removes and returns the first item of the client whose turn it is.

        Raises:
          KeyError: the queue is empty.
        """
        client, items = self._waiting.popitem(last=False)
        item = items.popleft()
        if items:
            self._waiting[client] = items
        return item

    def __iter__(self) -> Iterator[T]:
        """All items, client by client."""
        return (item for items in self._waiting.values() for item in items)

    def __bool__(self) -> bool:
        return bool(self._waiting)
