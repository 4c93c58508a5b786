"""Group commit: those who wait for the disk at the same time go there together.

A thread that is free takes its share of the files that wait, and brings each of them there once,
however many wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from jaxserve.gateway.sessions.session import NotRecorded, Session

_Waiting = list[asyncio.Future[None]]


class GroupCommit:
    """Brings records to the disk; for use by one event loop."""

    def __init__(self, threads: int) -> None:
        """Args: how many files are on their way at a time."""
        self._threads = ThreadPoolExecutor(threads, "jaxserve-disk")
        self._most = self._free = threads
        self._waiting: dict[Session, _Waiting] = {}
        self._under_way: set[Session] = set()

    async def synced(self, session: Session) -> None:
        """Returns when all that a session has written by now is on the disk.

        Raises:
          NotRecorded: it is not, or may not be.
        """
        told = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, []).append(told)
        self._begin()
        await told

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()

    def _begin(self) -> None:
        """Gives each thread that is free a share of the files that are not on their way."""
        if not self._free:
            return
        ready = [session for session in self._waiting if session not in self._under_way]
        share = -(-len(ready) // self._most)
        while ready and self._free:
            batch = {session: self._waiting.pop(session) for session in ready[:share]}
            del ready[:share]
            self._free -= 1
            self._under_way.update(batch)
            loop = asyncio.get_running_loop()
            done = loop.run_in_executor(self._threads, _sync_each, tuple(batch))
            done.add_done_callback(partial(self._end, batch))

    def _end(
        self, batch: Mapping[Session, _Waiting], done: asyncio.Future[Sequence[Exception | None]]
    ) -> None:
        self._free += 1
        self._under_way.difference_update(batch)
        for (session, waiting), error in zip(batch.items(), done.result(), strict=True):
            if error is not None:
                # What was written meanwhile may have been given up as well, and the kernel says so
                # only once.
                waiting = [*waiting, *self._waiting.pop(session, ())]
            for told in waiting:
                if told.done():  # who waited was cancelled
                    continue
                if error is None:
                    told.set_result(None)
                else:
                    told.set_exception(NotRecorded(str(error)))
        self._begin()


def _sync_each(sessions: Sequence[Session]) -> Sequence[Exception | None]:
    """Why each could not be brought to the disk; None where it is there."""
    found: list[Exception | None] = []
    for session in sessions:
        try:
            session.sync()
            found.append(None)
        except Exception as error:  # whatever it is, somebody waits to hear of it
            found.append(error)
    return found
