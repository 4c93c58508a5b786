"""Rebuilds sessions from the log in a thread of its own, while the worker steps all others.

The worker reads the log in small portions. Sessions of one environment are replayed together, up to
the batch size of ``advance_together``.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxserve.errors import InputError
from server.request_errors import EpisodeConflict, Overloaded, RefusedRequest
from server.sessions import programs
from server.sessions.compiling import Compiler
from server.sessions.episodes import Episode, built_in_task
from server.sessions.replaying import catch_up_together
from server.sessions.session import Session, begin_session
from server.sessions.sessions import Sessions
from server.sessions.store import Head, LoggedStep

_LOG = logging.getLogger("jaxserve.server")
_READ_AT_ONCE = 2000
"""Windows that the worker reads in one task, which takes milliseconds."""
_LOOK_UP_S = 0.2
_STOPPING = "the server is stopping; try again in a moment"

Rebuilt = Session | Exception
Ask = Callable[[Callable[[Sessions], Any]], Future[Any]]
"""Runs a task in the worker's thread."""


class _Named(NamedTuple):
    """A session's episode without its windows."""

    head: Head
    name: str
    episode: Episode


@dataclass
class _Request:
    """Sessions that a task of the worker waits for."""

    missing: dict[str, Head]
    done: Callable[[Mapping[str, Rebuilt]], None]
    wanted: Callable[[], bool]
    found: dict[str, Rebuilt] = field(default_factory=dict)

    def hand(self, outcomes: Mapping[str, Rebuilt]) -> bool:
        """Takes the results of its sessions; returns whether all are there."""
        for session_id in self.missing.keys() & outcomes.keys():
            del self.missing[session_id]
            outcome = outcomes[session_id]
            # Each request gets a copy: the worker changes its sessions.
            own = outcome.copy() if isinstance(outcome, Session) else outcome
            self.found[session_id] = own
        return not self.missing


class Rebuilding:
    """The thread that rebuilds sessions. Call ``start`` before the first ``request``."""

    def __init__(self, ask: Ask) -> None:
        """Args: function that runs a task in the worker's thread."""
        self._ask = ask
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._requests: list[_Request] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, compiler: Compiler) -> None:
        """Starts the thread. Args: compiler of the programs that a replay needs."""
        arguments = (compiler,)
        self._thread = threading.Thread(
            target=self._serve, args=arguments, name="jaxserve-rebuild", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stops after the sessions under way; the worker must still run."""
        self._ending.set()
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join()

    def request(
        self,
        sessions: Mapping[str, Head],
        done: Callable[[Mapping[str, Rebuilt]], None],
        wanted: Callable[[], bool],
    ) -> None:
        """Requests sessions; safe to call from any thread.

        Args:
          sessions: heads of the sessions in the log.
          done: called in the rebuilding thread, with each session or its error.
          wanted: whether the request is still wanted.
        """
        self._queue.put(_Request(dict(sessions), done, wanted))

    def _serve(self, compiler: Compiler) -> None:
        named: dict[str, _Named] = {}
        while self._listen():
            try:
                outcomes = self._next_outcomes(named, compiler)
            except Exception as error:
                if not self._ending.is_set():
                    _LOG.exception("sessions could not be rebuilt")
                outcomes = {key: error for request in self._requests for key in request.missing}
            for session_id in outcomes:
                named.pop(session_id, None)
            self._hand_out(outcomes)
        stopping = Overloaded(_STOPPING)
        self._hand_out({key: stopping for one in self._requests for key in one.missing})

    def _listen(self) -> bool:
        """Takes new requests, waiting if there is none at all; False when stopping."""
        self._requests = [request for request in self._requests if request.wanted()]
        while not self._ending.is_set():
            try:
                request = self._queue.get(block=not self._requests)
            except queue.Empty:
                break
            if request is not None:
                self._requests.append(request)
        return not self._ending.is_set()

    def _hand_out(self, outcomes: Mapping[str, Rebuilt]) -> None:
        left = []
        for request in self._requests:
            if request.hand(outcomes):
                request.done(request.found)
            else:
                left.append(request)
        self._requests = left

    def _next_outcomes(self, named: dict[str, _Named], compiler: Compiler) -> Mapping[str, Rebuilt]:
        """Sessions of the environment that was requested first, or errors of unreadable ones."""
        missing = {key: head for request in self._requests for key, head in request.missing.items()}
        unnamed = [key for key, head in missing.items() if _is_news(named.get(key), head)]
        for first in range(0, len(unnamed), programs.BATCH_SIZE):
            asked = {key: missing[key] for key in unnamed[first : first + programs.BATCH_SIZE]}
            answers = self._ask(lambda sessions, asked=asked: _names(sessions, asked)).result()
            problems = {}
            for key, answer in answers.items():
                if isinstance(answer, Exception):
                    problems[key] = answer
                else:
                    named[key] = answer
            if problems:
                return problems
        chosen = _of_one_environment([(key, named[key]) for key in missing])
        return self._replayed(dict(chosen), compiler)

    def _replayed(self, chosen: Mapping[str, _Named], compiler: Compiler) -> Mapping[str, Rebuilt]:
        simulator = programs.simulator(next(iter(chosen.values())).episode)
        self._wait(compiler.compiled(simulator, together=False))
        logs, outcomes = self._read(chosen)
        if any(step.together for log in logs.values() for step in log):
            self._wait(compiler.compiled(simulator, together=True))
        sessions = [
            begin_session(key, chosen[key].head.episode, chosen[key].name, chosen[key].episode)
            for key in logs
        ]
        problems = catch_up_together(sessions, list(logs.values()))
        for session, problem in zip(sessions, problems, strict=True):
            outcomes[session.id] = problem or session
        return outcomes

    def _wait(self, future: Future[None]) -> None:
        """Waits for a program; raises Overloaded when stopping."""
        while not self._ending.is_set():
            done, _ = wait([future], timeout=_LOOK_UP_S)
            if done:
                return future.result()
        raise Overloaded(_STOPPING)

    def _read(
        self, chosen: Mapping[str, _Named]
    ) -> tuple[dict[str, list[LoggedStep]], dict[str, Rebuilt]]:
        """Logs of the sessions, and the errors of those that have none."""
        logs: dict[str, list[LoggedStep]] = {}
        problems: dict[str, Rebuilt] = {}
        waiting = list(chosen.items())
        while waiting:
            portion, windows = [], 0
            while waiting and windows < _READ_AT_ONCE:
                portion.append(waiting.pop())
                windows += portion[-1][1].head.steps
            answers = self._ask(lambda s, portion=portion: _logs(s, portion)).result()
            for key, answer in answers.items():
                if isinstance(answer, Exception):
                    problems[key] = answer
                else:
                    logs[key] = answer
        return logs, problems


def _is_news(known: _Named | None, head: Head) -> bool:
    return known is None or (known.head.episode, known.head.steps) != (head.episode, head.steps)


def _of_one_environment(sessions: Sequence[tuple[str, _Named]]) -> list[tuple[str, _Named]]:
    first = sessions[0][1].episode
    alike = [
        (key, named)
        for key, named in sessions
        if (named.episode.task, named.episode.config) == (first.task, first.config)
    ]
    return alike[: programs.BATCH_SIZE]


def _names(sessions: Sessions, asked: Mapping[str, Head]) -> dict[str, _Named | Exception]:
    """Episodes of sessions or errors; runs in the worker's thread."""
    found: dict[str, _Named | Exception] = {}
    for session_id, head in asked.items():
        try:
            found[session_id] = _Named(head, *_episode(sessions, session_id, head))
        except (RefusedRequest, InputError) as problem:
            found[session_id] = problem
    return found


def _episode(sessions: Sessions, session_id: str, head: Head) -> tuple[str, Episode]:
    name, spec = sessions.store.episode(head.episode)
    episode = Episode.from_json(spec)
    version = built_in_task(episode.task).version
    if version != episode.task_version:
        raise EpisodeConflict(
            f"session {session_id!r} was played on version {episode.task_version} of "
            f"{episode.task}, which is now at version {version}; reset it to go on"
        )
    return name, episode


def _logs(
    sessions: Sessions, asked: Sequence[tuple[str, _Named]]
) -> dict[str, list[LoggedStep] | Exception]:
    """Logs of sessions or errors; runs in the worker's thread."""
    found: dict[str, list[LoggedStep] | Exception] = {}
    for session_id, (head, _, _) in asked:
        try:
            steps = sessions.store.steps(session_id, head.episode)
        except RefusedRequest as problem:
            found[session_id] = problem
            continue
        # Another process may have stepped it since, or expired it.
        lost = len(steps) < head.steps
        found[session_id] = sessions.expired(session_id) if lost else steps[: head.steps]
    return found
