"""Whether the files of a SQLite log are still those that were opened, and whole.

SQLite does not notice that a file it has open was removed or written over: it goes on writing to
what nobody will find again.

In WAL mode only checkpoints write to the log itself, and whoever makes one notes it in the index
that all processes share (the -shm file) before the first page and after the last. A log that
was written to while nothing was noted there was written to by somebody else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import struct
from typing import NamedTuple

_MAGIC = b"SQLite format 3\x00"
_MARK = slice(68, 72)
"""Where a file's header has its ``application_id``."""
_HEADER, _WAL_HEADER, _FRAME_HEADER = 100, 32, 24
_INDEX_HEADER, _INDEX = 48, 136


def give_mark(connection: sqlite3.Connection) -> None:
    """Gives a log a random number of its own, by which another one in its place is known, unless
    it has one. Where it cannot be written now, a later start does it."""
    with contextlib.suppress(sqlite3.OperationalError):
        if _mark(connection):
            return
        with connection:
            connection.execute("BEGIN IMMEDIATE")
            # Another process may have been faster.
            if not _mark(connection):
                mark = 1 + secrets.randbelow(2**31 - 1)
                connection.execute(f"PRAGMA application_id = {mark}")
        # Into the file itself, and no room is kept for what that took.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _mark(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA application_id").fetchone()[0]


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

    def stamp(self) -> tuple[int, int]:
        """Differs once it was written to: bytes, and nanoseconds of the clock."""
        mine = os.fstat(self.descriptor)
        return mine.st_size, mine.st_mtime_ns


class _Index(NamedTuple):
    """What every process that has the log open believes of its -wal file."""

    frames: int
    """committed ones."""
    checksum: tuple[int, int]
    """of the last of them."""
    salt: bytes
    """differs each time the -wal file is begun anew."""
    copied: int
    """frames that are in the log itself."""
    copying: int
    """the same once the last checkpoint that was begun is done."""

    @classmethod
    def of(cls, shm: _Opened) -> _Index | None:
        """None where there is none, or while it is written."""
        found = shm.read(_INDEX)
        if len(found) < _INDEX:
            return None
        # It is there twice, one written after the other.
        if found[:_INDEX_HEADER] != found[_INDEX_HEADER : 2 * _INDEX_HEADER]:
            return None
        frames, _, *checksum = struct.unpack_from("=IIII", found, 16)
        (copied,) = struct.unpack_from("=I", found, 96)
        (copying,) = struct.unpack_from("=I", found, 128)
        return cls(frames, (checksum[0], checksum[1]), found[32:40], copied, copying)

    @property
    def checkpoints(self) -> tuple[bytes, int, int] | None:
        """Differs after every checkpoint; None while one is under way, or was broken off."""
        done = self.copied == self.copying
        return (self.salt, self.copied, self.copying) if done else None


class FileWatch:
    """Begin it while the log is open, and close it only after the log: to close any descriptor of
    a file gives up all of the process's locks on it."""

    def __init__(self, path: str, name: str = "the session log") -> None:
        """Args: of the log, and what it is called."""
        self._name = name
        self._log = _Opened.of(name, path)
        self._mark = self._log.read(_HEADER)[_MARK] if self._log else b""
        self._size = self._log.size() if self._log else 0
        self._wal = _Opened.of(f"{name}'s -wal file", f"{path}-wal")
        self._shm = _Opened.of(f"{name}'s -shm file", f"{path}-shm")
        self._checkpoints: tuple[bytes, int, int] | None = None
        self._stamp = (0, 0)
        self._overwritten = False
        self.look()

    def look(self) -> None:
        """Takes note of the checkpoints so far: right after every write of one's own, so that none
        hides what somebody else writes later. Takes microseconds."""
        if self._log is None or self._shm is None:
            return
        before = _Index.of(self._shm)
        stamp = self._log.stamp()
        # One that has begun since may have written already.
        after = _Index.of(self._shm)
        if before is None or after is None:
            return
        seen = before.checkpoints
        if stamp != self._stamp and seen is not None:
            self._overwritten |= seen == self._checkpoints == after.checkpoints
        self._checkpoints, self._stamp = seen, stamp

    def fault(self) -> str | None:
        """What is wrong, as a sentence without its end; None if nothing is. Takes microseconds."""
        if self._log is None:
            return None
        for file in (self._log, self._wal, self._shm):
            if file is not None and (gone := file.moved()):
                return gone
        header = self._log.read(_HEADER)
        size = self._log.size()
        # Pages that are freed are kept: it never becomes smaller by itself.
        if size < self._size:
            return f"{self._name} was truncated while the server ran"
        self._size = size
        self.look()
        # A log of an earlier version has no mark before its first checkpoint.
        self._mark = self._mark if any(self._mark) else header[_MARK]
        another = header[: len(_MAGIC)] != _MAGIC or header[_MARK] != self._mark
        if self._overwritten or (header and another):
            return f"{self._name} was written over while the server ran"
        return self._fault_of_wal(header)

    def close(self) -> None:
        """Lets go of the files."""
        for file in (self._log, self._wal, self._shm):
            if file is not None:
                os.close(file.descriptor)
        self._log = self._wal = self._shm = None

    def _fault_of_wal(self, header: bytes) -> str | None:
        if self._wal is None or self._shm is None or len(header) < _HEADER:
            return None
        (page,) = struct.unpack_from(">H", header, 16)
        frame = _FRAME_HEADER + (65536 if page == 1 else page)
        index = _Index.of(self._shm)
        if index is None or not index.frames:
            return None
        end = _WAL_HEADER + index.frames * frame
        size, salt = self._wal.size(), self._wal.read(len(index.salt), 16)
        checksum = self._wal.read(8, end - frame + 16)
        if _Index.of(self._shm) != index:
            # It was written to meanwhile.
            return None
        if size < end:
            return f"{self._wal.name} was truncated while the server ran"
        if salt != index.salt or checksum != struct.pack(">II", *index.checksum):
            return f"{self._wal.name} was written over while the server ran"
        return None
