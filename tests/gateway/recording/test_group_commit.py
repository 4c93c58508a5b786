"""Those who wait for the disk share the way there, and hear what became of theirs."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxserve.gateway.recording.group_commit import GroupCommit
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Disk:
    """Holds every ``fsync`` until it is let through, and may refuse it."""

    def __init__(self, folder: Path) -> None:
        """Args: where files are made."""
        self._folder = folder
        self.synced: Counter[str] = Counter()
        """how often each file was brought there."""
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = False

    def file(self, name: str) -> Path:
        """An empty one."""
        path = self._folder / name
        path.touch()
        return path

    def fsync(self, file: int) -> None:
        """In place of that of ``os``."""
        fails = self.fails
        self.synced[Path(os.readlink(f"/proc/self/fd/{file}")).name] += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_S)
        if fails:
            raise OSError(5, "Input/output error")

    async def has_begun(self, times: int = 1) -> None:
        """Returns when so many more have begun."""
        for _ in range(times):
            assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE_S)

    def free(self) -> None:
        """Holds nothing any more."""
        self.may_end.release(1000)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk, and no file is left open."""
    found = Disk(tmp_path)
    monkeypatch.setattr("jaxserve.gateway.recording.group_commit.os.fsync", found.fsync)
    yield found
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    assert not [link for link in links if str(tmp_path) in os.path.realpath(link)]


async def waiting(commits: GroupCommit, path: Path, count: int) -> list[asyncio.Task[None]]:
    """So many who wait."""
    tasks = [asyncio.create_task(commits.synced(path)) for _ in range(count)]
    await asyncio.sleep(0)  # each of them has begun to
    return tasks


async def test_who_waits_shares_a_sync(disk: Disk) -> None:
    """What was written after a sync began is not told of by that one, but by the next, once."""
    commits, one = GroupCommit(4), disk.file("one")
    (first,) = await waiting(commits, one, 1)
    await disk.has_begun()
    later = await waiting(commits, one, 5)
    disk.may_end.release()
    await first
    await disk.has_begun()
    assert not any(task.done() for task in later)
    disk.may_end.release()
    await asyncio.gather(*later)
    assert disk.synced == {"one": 2}
    commits.close()


async def test_files_are_shared_out(disk: Disk) -> None:
    """As many at a time as there are threads; those that wait meanwhile follow."""
    commits, names = GroupCommit(2), [str(number) for number in range(6)]
    tasks = [task for name in names for task in await waiting(commits, disk.file(name), 1)]
    await disk.has_begun(2)
    assert disk.synced == {"0": 1, "1": 1}
    disk.free()
    await asyncio.gather(*tasks)
    assert disk.synced == dict.fromkeys(names, 1)
    commits.close()


async def test_a_failure_is_that_of_all_who_wrote_before_it(disk: Disk) -> None:
    """The kernel tells of it once; other files are not touched, and the next sync begins anew."""
    commits, one = GroupCommit(4), disk.file("one")
    disk.fails = True
    first = await waiting(commits, one, 1)
    await disk.has_begun()
    disk.fails = False
    later = await waiting(commits, one, 2)
    (apart,) = await waiting(commits, disk.file("other"), 1)
    disk.free()
    for task in (*first, *later):
        with pytest.raises(OSError, match="Input/output error"):
            await task
    await apart
    assert disk.synced == {"one": 1, "other": 1}
    await commits.synced(one)
    commits.close()


async def test_a_file_that_is_gone_fails_alone(disk: Disk) -> None:
    """Others of the same share are brought to the disk."""
    commits, gone = GroupCommit(1), disk.file("gone")
    (first,) = await waiting(commits, disk.file("first"), 1)
    await disk.has_begun()
    (lost,) = await waiting(commits, gone, 1)
    (kept,) = await waiting(commits, disk.file("kept"), 1)
    gone.unlink()
    disk.free()
    await asyncio.gather(first, kept)
    with pytest.raises(FileNotFoundError):
        await lost
    commits.close()


async def test_whoever_leaves_is_not_missed(disk: Disk) -> None:
    """Others of the same sync still hear of it, and the next one begins."""
    commits, one = GroupCommit(1), disk.file("one")
    (first,) = await waiting(commits, one, 1)
    await disk.has_begun()
    left, stays = await waiting(commits, one, 2)
    first.cancel()
    left.cancel()
    disk.free()
    await stays
    assert disk.synced == {"one": 2} and left.cancelled()
    await commits.synced(one)
    commits.close()
