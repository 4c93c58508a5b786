"""Group commit: those who wait for the disk at the same time go there together.

A thread that is free takes its share of the files that wait, and brings each of them there once,
however many wait for it. It does nothing else: each time that it asks for the interpreter, the
event loop has to stop.
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
    """Brings files to the disk; for use by one event loop."""

    def __init__(self, threads: int) -> None:
        """Args: how many files are on their way at a time."""
        self._threads = ThreadPoolExecutor(threads, "jaxserve-disk")
        self._most = self._free = threads
        self._waiting: dict[Path, _Waiting] = {}
        self._under_way: set[Path] = set()

    async def synced(self, path: Path) -> None:
        """Returns when all that has been written to a file by now is on the disk.

        Raises:
          OSError: it is not, or may not be.
        """
        told = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(path, []).append(told)
        self._begin()
        await told

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown()

    def _begin(self) -> None:
        """Gives each thread that is free a share of the files that are not on their way."""
        if not self._free:
            return
        ready = [path for path in self._waiting if path not in self._under_way]
        share = -(-len(ready) // self._most)
        while ready and self._free:
            batch = ready[:share]
            del ready[:share]
            files: dict[Path, int] = {}
            for path in batch:
                try:
                    files[path] = os.open(path, os.O_RDONLY)
                except OSError as error:
                    _tell(self._waiting.pop(path), error)
            if files:
                self._send(files)

    def _send(self, files: Mapping[Path, int]) -> None:
        waiting = {path: self._waiting.pop(path) for path in files}
        self._free -= 1
        self._under_way.update(files)
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
        self._under_way.difference_update(files)
        for (path, file), error in zip(files.items(), done.result(), strict=True):
            with suppress(OSError):  # all that counts was said by fsync
                os.close(file)
            _tell(waiting[path], error)
            if error is not None:
                # What was written meanwhile may have been given up as well, and the kernel says so
                # only once.
                _tell(self._waiting.pop(path, ()), error)
        self._begin()


def _sync_each(files: Sequence[int]) -> Sequence[OSError | None]:
    """Why each could not be brought to the disk; None where it is there."""
    found: list[OSError | None] = []
    for file in files:
        try:
            os.fsync(file)
            found.append(None)
        except OSError as error:
            found.append(error)
    return found


def _tell(waiting: Sequence[asyncio.Future[None]], error: OSError | None) -> None:
    for told in waiting:
        if told.done():  # who waited was cancelled
            continue
        if error is None:
            told.set_result(None)
        else:
            # One of its own: what is raised again and again keeps every frame it passed.
            told.set_exception(OSError(error.errno, error.strerror))
