"""The sessions that a node works on: what it is given begins, what is taken from it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from jaxserve.rollouts.service.state.leases import Lease
from jaxserve.rollouts.service.worker.worker import SessionWorker


class WorkerPool:
    """All that runs on a node."""

    def __init__(self, worker: SessionWorker) -> None:
        """Args: who brings one session to its end."""
        self._worker = worker
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}

    @property
    def keys(self) -> list[tuple[str, int]]:
        """Sessions and leases that it works on."""
        return list(self._running)

    def take(self, held: Collection[tuple[str, int]], new: Sequence[Lease]) -> None:
        """What the node has from now on.

        Args:
          held: all of it.
          new: those of it that may not have begun.
        """
        for key, work in self._running.items():
            if key not in held:
                work.cancel()
        for lease in new:
            if lease.key not in self._running:
                work = asyncio.create_task(self._worker.finish(lease))
                self._running[lease.key] = work
                work.add_done_callback(lambda _, key=lease.key: self._running.pop(key, None))

    async def end(self, session: str) -> None:
        """Ends the work on a session, with its agent."""
        ended = [work for (id, _), work in self._running.items() if id == session]
        for work in ended:
            work.cancel()
        if ended:
            await asyncio.wait(ended)

    async def close(self) -> None:
        """Ends all of it."""
        running = tuple(self._running.values())
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
