"""Sessions without a server: what a worker has others do is done at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from server.sessions.episodes import Episode
from server.sessions.rebuilding import Rebuilding, Rebuilt
from server.sessions.session import Session, new_session
from server.sessions.sessions import Absent, Sessions, Uncompiled
from server.sessions.store import Head
from tests.server.compiler import CompiledAtOnce

T = TypeVar("T")


def begun(sessions: Sessions, episode: Episode) -> Session:
    """A new session at its beginning."""
    return sessions.begin(new_session(None, None, episode), is_new=True)


def rebuilt(sessions: Sessions, wanted: Mapping[str, Head]) -> Mapping[str, Rebuilt]:
    """What the thread that rebuilds makes of them."""

    def ask(task: Callable[[Sessions], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(task(sessions))
        return future

    rebuilding = Rebuilding(ask)
    found: Future[Mapping[str, Rebuilt]] = Future()
    rebuilding.request(wanted, found.set_result, lambda: True)
    rebuilding.start(CompiledAtOnce())
    try:
        return found.result(300.0)
    finally:
        rebuilding.stop()


def present(sessions: Sessions, task: Callable[[Sessions], T]) -> T:
    """The task's result, as a worker would give it."""
    while True:
        try:
            return task(sessions)
        except Uncompiled as missing:
            CompiledAtOnce().compiled(missing.simulator, together=True)
        except Absent as absent:
            outcomes = rebuilt(sessions, absent.sessions)
            for outcome in outcomes.values():
                if isinstance(outcome, Exception):
                    raise outcome from None
            sessions.adopt([one for one in outcomes.values() if isinstance(one, Session)])
