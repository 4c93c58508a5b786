"""The file of a session's records: only ever added to, and whole after a kill at any moment."""

from __future__ import annotations

import os
from pathlib import Path


class RecordFile:
    """Lines of one session."""

    def __init__(self, path: Path) -> None:
        """Makes the file, or takes off what a kill has left of its last line.

        Raises:
          OSError: it cannot be written.
        """
        self._path = path
        self._torn = False
        with path.open("ab+") as file:
            self._size = _end_of_last_line(file.fileno())
            os.ftruncate(file.fileno(), self._size)

    def add(self, line: bytes) -> None:
        """Adds a line. It outlives this process once this returns, and the machine after ``sync``.

        Raises:
          OSError: it cannot be written, and nothing of it has been.
        """
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            if self._torn:
                os.ftruncate(file, self._size)
                self._torn = False
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(file, rest) :]
            except OSError:
                self._torn = True
                os.ftruncate(file, self._size)
                self._torn = False
                raise
            self._size += len(line)
        finally:
            os.close(file)


def sync(path: Path) -> None:
    """Returns when a file or the entries of a folder are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _end_of_last_line(file: int) -> int:
    end = os.fstat(file).st_size
    while end > 0:
        start = max(0, end - 65_536)
        found = os.pread(file, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
