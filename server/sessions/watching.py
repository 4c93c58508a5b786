"""Whether the files of the session log are still those that were opened, and whole.

SQLite does not notice that a file it has open was removed or written over: it goes on writing to
what nobody will find again.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

_MAGIC = b"SQLite format 3\x00"
_HEADER, _WAL_HEADER, _FRAME_HEADER = 100, 32, 24


class _Opened(NamedTuple):
    """A file, and the descriptor that keeps it apart from one that takes its name."""

    name: str
    path: str
    descriptor: int
    identity: tuple[int, int]
    """device and number of the file, which stay as they are."""

    @classmethod
    def of(cls, name: str, path: str) -> _Opened | None:
        """None where there is no such file."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        mine = os.fstat(descriptor)
        return cls(name, path, descriptor, (mine.st_dev, mine.st_ino))

    def moved(self) -> str | None:
        """What has become of its name, None if it still has it."""
        try:
            there = os.stat(self.path)
        except OSError:
            return f"{self.name} was removed while the server ran"
        if (there.st_dev, there.st_ino) != self.identity:
            return f"{self.name} was replaced by another file while the server ran"
        return None

    def read(self, count: int, offset: int = 0) -> bytes:
        """Bytes as they are on the disk, fewer where it ends."""
        return os.pread(self.descriptor, count, offset)

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self.descriptor).st_size


class FileWatch:
    """Begin it while the log is open, and close it only after the log: to close any descriptor of
    a file gives up all of the process's locks on it."""

    def __init__(self, path: str) -> None:
        """Args: of the log."""
        self._log = _Opened.of("the session log", path)
        self._begin = self._log.read(len(_MAGIC)) if self._log else b""
        self._size = self._log.size() if self._log else 0
        self._wal = _Opened.of("the session log's -wal file", f"{path}-wal")
        self._shm = _Opened.of("the session log's -shm file", f"{path}-shm")

    def fault(self) -> str | None:
        """What is wrong, as a sentence without its end; None if nothing is. Takes microseconds."""
        if self._log is None:
            return None
        for file in (self._log, self._wal, self._shm):
            if file is not None and (gone := file.moved()):
                return gone
        header = self._log.read(_HEADER)
        if header[: len(_MAGIC)] != self._begin and header:
            return "the session log was written over while the server ran"
        return self._cut_off(header)

    def close(self) -> None:
        """Lets go of the files."""
        for file in (self._log, self._wal, self._shm):
            if file is not None:
                os.close(file.descriptor)
        self._log = self._wal = self._shm = None

    def _cut_off(self, header: bytes) -> str | None:
        assert self._log is not None
        size = self._log.size()
        # Pages that are freed are kept: it never becomes smaller by itself.
        if size < self._size:
            return "the session log was truncated while the server ran"
        self._size = size
        if self._wal is None or self._shm is None or len(header) < _HEADER:
            return None
        (page,) = struct.unpack_from(">H", header, 16)
        page = 65536 if page == 1 else page
        # How many frames every process that has the log open believes to be there.
        index = self._shm.read(20)
        frames = struct.unpack_from("=I", index, 16)[0] if len(index) == 20 else 0
        if frames and self._wal.size() < _WAL_HEADER + frames * (_FRAME_HEADER + page):
            return "the session log's -wal file was truncated while the server ran"
        if frames and self._wal.read(3) != b"\x37\x7f\x06":
            return "the session log's -wal file was written over while the server ran"
        return None
