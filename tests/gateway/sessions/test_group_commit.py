"""Those who wait for the disk share the way there, and hear what became of theirs."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from jaxserve.gateway.sessions.group_commit import GroupCommit
from jaxserve.gateway.sessions.session import NotRecorded, Session, SessionInfo
from tests.gateway.stub_engine import PATIENCE_S


class Disk(Session):
    """A session whose way to the disk is held open until it is let through."""

    def __init__(self, name: str) -> None:
        """Nothing has been brought there."""
        super().__init__(SessionInfo(name, 0.0, ""), Path(name))
        self.synced: list[int] = []
        """threads that brought it there."""
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = False

    def sync(self) -> None:
        """Waits."""
        fails = self.fails
        self.synced.append(threading.get_ident())
        self.begun.release()
        assert self.may_end.acquire(timeout=PATIENCE_S)
        if fails:
            raise NotRecorded("no disk")

    async def on_its_way(self) -> None:
        """Returns when one more sync has begun."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE_S)

    def free(self) -> None:
        """Holds nothing any more."""
        self.may_end.release(1000)


async def waiting(commits: GroupCommit, session: Session, count: int) -> list[asyncio.Task[None]]:
    """So many who wait."""
    tasks = [asyncio.create_task(commits.synced(session)) for _ in range(count)]
    await asyncio.sleep(0)  # each of them has begun to
    return tasks


def test_who_waits_shares_a_sync() -> None:
    """What was written after a sync began is not told of by that one, but by the next, once."""

    async def go() -> None:
        commits, one = GroupCommit(4), Disk("one")
        (first,) = await waiting(commits, one, 1)
        await one.on_its_way()
        later = await waiting(commits, one, 5)
        one.may_end.release()
        await first
        await one.on_its_way()
        assert len(one.synced) == 2 and not any(task.done() for task in later)
        one.may_end.release()
        await asyncio.gather(*later)
        assert len(one.synced) == 2
        commits.close()

    asyncio.run(go())


def test_sessions_are_shared_out() -> None:
    """As many at a time as there are threads; those that wait meanwhile go in one more turn of
    each."""

    async def go() -> None:
        commits, all_of_them = GroupCommit(2), [Disk(str(number)) for number in range(6)]
        tasks = [task for one in all_of_them for task in await waiting(commits, one, 1)]
        for one in all_of_them[:2]:
            await one.on_its_way()
        assert [len(one.synced) for one in all_of_them] == [1, 1, 0, 0, 0, 0]
        for one in all_of_them:
            one.free()
        await asyncio.gather(*tasks)
        assert [len(one.synced) for one in all_of_them] == [1] * 6
        commits.close()

    asyncio.run(go())


def test_a_failure_is_that_of_all_who_wrote_before_it() -> None:
    """The kernel tells of it once; others are not touched, and the next sync begins anew."""

    async def go() -> None:
        commits, one, other = GroupCommit(4), Disk("one"), Disk("other")
        one.fails = True
        other.free()
        first = await waiting(commits, one, 1)
        await one.on_its_way()
        later = await waiting(commits, one, 2)
        (apart,) = await waiting(commits, other, 1)
        one.fails = False
        one.free()
        for task in (*first, *later):
            with pytest.raises(NotRecorded, match="no disk"):
                await task
        await apart
        assert len(one.synced) == 1
        await commits.synced(one)
        commits.close()

    asyncio.run(go())


def test_whoever_leaves_is_not_missed() -> None:
    """Others of the same sync still hear of it, and the next one begins."""

    async def go() -> None:
        commits, one = GroupCommit(1), Disk("one")
        tasks = await waiting(commits, one, 1)
        await one.on_its_way()
        left, stays = await waiting(commits, one, 2)
        tasks[0].cancel()
        left.cancel()
        one.free()
        await stays
        assert len(one.synced) == 2 and left.cancelled()
        await commits.synced(one)
        commits.close()

    asyncio.run(go())
