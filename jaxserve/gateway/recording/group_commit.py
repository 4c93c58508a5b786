"""Group commit: concurrent writers of a file share one ``fsync``.

A free thread takes a share of the waiting files and syncs each once, for all writers that wait for
that file. The threads do nothing else: the event loop stops each time a thread takes the GIL.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

_Waiting = list[asyncio.Future[None]]


class GroupCommit:
    """Syncs files; for use by one event loop."""

    def __init__(self, threads: int) -> None:
        """Args: number of threads."""
        self._threads = ThreadPoolExecutor(threads, "jaxserve-disk")
        self._count = self._free = threads
        self._waiting: dict[Path, _Waiting] = {}
        self._syncing: set[Path] = set()

    async def synced(self, path: Path) -> None:
        """Waits until all bytes written to a file by now are on the disk.

        Raises:
          OSError: the sync failed, or may have.
        """
        synced = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(path, []).append(synced)
        self._begin()
        await synced

    def close(self) -> None:
        """Stops the threads."""
        self._threads.shutdown()

    def _begin(self) -> None:
        """Gives each free thread a share of the waiting files that no thread is syncing."""
        if not self._free:
            return
        ready = [path for path in self._waiting if path not in self._syncing]
        share = -(-len(ready) // self._count)
        while ready and self._free:
            batch = ready[:share]
            del ready[:share]
            files: dict[Path, int] = {}
            for path in batch:
                try:
                    files[path] = os.open(path, os.O_RDONLY)
                except OSError as error:
                    _notify(self._waiting.pop(path), error)
            if files:
                self._send(files)

    def _send(self, files: Mapping[Path, int]) -> None:
        waiting = {path: self._waiting.pop(path) for path in files}
        self._free -= 1
        self._syncing.update(files)
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._threads, _sync_each, tuple(files.values()))
        done.add_done_callback(partial(self._end, files, waiting))

    def _end(
        self,
        files: Mapping[Path, int],
        waiting: Mapping[Path, _Waiting],
        done: asyncio.Future[Sequence[OSError | None]],
    ) -> None:
        self._free += 1
        self._syncing.difference_update(files)
        for (path, file), error in zip(files.items(), done.result(), strict=True):
            with suppress(OSError):  # fsync has reported what matters
                os.close(file)
            _notify(waiting[path], error)
            if error is not None:
                # Later writes may be lost as well, and the kernel reports the error only once.
                _notify(self._waiting.pop(path, ()), error)
        self._begin()


def _sync_each(files: Sequence[int]) -> Sequence[OSError | None]:
    """Syncs files; returns the error of each, None where the sync succeeded."""
    found: list[OSError | None] = []
    for file in files:
        try:
            os.fsync(file)
            found.append(None)
        except OSError as error:
            found.append(error)
    return found


def _notify(waiting: Sequence[asyncio.Future[None]], error: OSError | None) -> None:
    for synced in waiting:
        if synced.done():  # the waiting task was cancelled
            continue
        if error is None:
            synced.set_result(None)
        else:
            # A fresh exception per waiter; a shared one would accumulate tracebacks.
            synced.set_exception(OSError(error.errno, error.strerror))
