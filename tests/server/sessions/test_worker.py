"""What takes long is done elsewhere: everybody else plays on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from server.request_errors import StorageFailure
from server.sessions import programs, rebuilding
from server.sessions import worker as worker_module
from server.sessions.episodes import parse_episode
from server.sessions.programs import Simulator
from server.sessions.session import View, new_session
from server.sessions.sessions import Sessions
from server.sessions.store import open_store
from server.sessions.worker import Worker
from server.turns import CLIENT
from tests.server.compiler import CompiledAtOnce

KNOBS = (64.0, 0.9, 2.0, 0.0, 0.0, 1.0, 0.0)
TASK = "static_workload"


def step(session_id: str) -> Callable[[Sessions], View]:
    def task(sessions: Sessions) -> View:
        session = sessions.find(session_id)
        sessions.step(session, KNOBS)
        return session.view()

    return task


def begin(seed: int) -> Callable[[Sessions], str]:
    session = new_session(None, None, parse_episode(TASK, seed, "train", None))
    return lambda sessions: sessions.begin(session, is_new=True).id


def play(
    path: Path, what: Callable[[Worker], Coroutine[Any, Any, Any]], compiler: Any = None
) -> None:
    async def run() -> None:
        store = open_store(str(path))
        worker = Worker(Sessions(store, live=99, idle_s=1e6, default_session=False))
        worker.start(compiler or CompiledAtOnce())
        try:
            await what(worker)
        finally:
            await asyncio.to_thread(worker.stop)

    asyncio.run(run())


def test_others_play_while_sessions_are_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever waits for one of them goes on where it was; a client that left is let go."""
    names: list[str] = []

    async def before(worker: Worker) -> None:
        names.append(await worker.run(begin(1)))
        for _ in range(12):
            await worker.run(step(names[0]))

    play(tmp_path / "log", before)
    replaying, go_on = threading.Event(), threading.Event()
    replay = rebuilding.catch_up_together

    def slow(*arguments: Any) -> Any:
        replaying.set()
        assert go_on.wait(300.0)
        return replay(*arguments)

    monkeypatch.setattr(rebuilding, "catch_up_together", slow)

    async def after(worker: Worker) -> None:
        waiting = [asyncio.ensure_future(worker.run(step(names[0]))) for _ in range(3)]
        assert await asyncio.to_thread(replaying.wait, 60.0)
        other = await worker.run(begin(2))
        for number in range(1, 4):
            assert (await worker.run(step(other))).steps == number
        assert not any(one.done() for one in waiting)
        waiting[1].cancel()
        go_on.set()
        steps = [(await one).steps for one in (waiting[0], waiting[2])]
        assert sorted(steps) == [13, 14]
        assert (await worker.run(step(names[0]))).steps == 15

    play(tmp_path / "log", after)


def test_others_play_while_a_program_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program is compiled in the thread that steps: only who asked for it waits."""
    compiled: set[bool] = {False}
    monkeypatch.setattr(programs, "is_compiled", lambda simulator, together: together in compiled)

    class Slow(CompiledAtOnce):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[bool] = []
            self.done: Future[None] = Future()

        def compiled(self, simulator: Simulator, *, together: bool) -> Future[None]:
            self.asked.append(together)
            return self.done

    compiler = Slow()

    def many(names: list[str]) -> Callable[[Sessions], list[int]]:
        return lambda s: list(s.step_many(s.find_many(names), [KNOBS] * len(names)).steps)

    async def players(worker: Worker) -> None:
        names = [await worker.run(begin(seed)) for seed in range(3)]
        waiting = asyncio.ensure_future(worker.run(many(names)))
        for number in range(1, 4):
            assert (await worker.run(step(names[0]))).steps == number
        assert compiler.asked == [True]
        assert not waiting.done()
        compiled.add(True)
        compiler.done.set_result(None)
        assert await waiting == [4, 1, 1]

    play(tmp_path / "log", players, compiler)


def test_a_program_that_cannot_be_compiled_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To whoever asked for it, and to nobody else."""
    monkeypatch.setattr(programs, "is_compiled", lambda simulator, together: not together)

    class Broken(CompiledAtOnce):
        def compiled(self, simulator: Simulator, *, together: bool) -> Future[None]:
            failed: Future[None] = Future()
            failed.set_exception(RuntimeError("XLA gave up"))
            return failed

    async def players(worker: Worker) -> None:
        name = await worker.run(begin(1))
        with pytest.raises(RuntimeError, match="XLA gave up"):
            await worker.run(lambda s: s.step_many(s.find_many([name]), [KNOBS]))
        assert (await worker.run(step(name))).steps == 1

    play(tmp_path / "log", players, Broken())


def test_clients_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with many tasks lets another's come after its first; each keeps its own order."""
    monkeypatch.setattr(worker_module, "_GROUP_S", 0.0)
    order: list[str] = []

    async def players(worker: Worker) -> None:
        hold = threading.Event()
        asked = [asyncio.ensure_future(worker.run(lambda sessions: hold.wait(300.0)))]
        await asyncio.sleep(0)

        async def ask(client: str, count: int) -> None:
            CLIENT.set(client)
            for number in range(count):
                name = f"{client} {number}"
                asked.append(asyncio.ensure_future(worker.run(lambda s, n=name: order.append(n))))
            await asyncio.sleep(0)

        await asyncio.ensure_future(ask("many", 4))
        await asyncio.ensure_future(ask("few", 2))
        hold.set()
        await asyncio.gather(*asked)

    play(tmp_path / "log", players)
    assert order == ["many 0", "few 0", "many 1", "few 1", "many 2", "many 3"]


def test_who_only_reads_is_answered_when_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the log is asked once for all that wait, not once for each."""
    attempts: list[int] = []

    async def players(worker: Worker) -> None:
        name = await worker.run(begin(1))

        def full(records: Any) -> None:
            attempts.append(len(records))
            if records:
                raise StorageFailure("the disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(worker._sessions.store, "commit", full)
            patched.setattr(worker_module, "_GROUP_S", 300.0)
            # Jobs that come while one is computed share a group.
            hold = threading.Event()
            first = asyncio.ensure_future(worker.run(lambda sessions: hold.wait(300.0)))
            steps = [asyncio.ensure_future(worker.run(step(name))) for _ in range(5)]
            look = asyncio.ensure_future(worker.run(lambda s: s.find(name).steps))
            await asyncio.sleep(0)
            hold.set()
            await first
            for one in steps:
                with pytest.raises(StorageFailure, match="full"):
                    await one
            assert await look == 0
            assert [count for count in attempts if count] == [5]
        assert (await worker.run(step(name))).steps == 1

    play(tmp_path / "log", players)
