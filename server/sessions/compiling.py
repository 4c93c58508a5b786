"""Compiles before anybody waits for it."""

from __future__ import annotations

import atexit
import functools
import gc
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

import jax

from jaxserve.errors import InputError
from jaxserve.grading import grade_actions
from jaxserve.runtime.compilation_cache import enable_compilation_cache
from jaxserve.spaces import DEFAULT_ACTION
from jaxserve.tasks.spec import task_names
from server.sessions import engine
from server.sessions.episodes import parse_episode

_LOG = logging.getLogger("jaxserve.server")
_FIRST = "static_workload"
_PATIENCE_S = 30.0
_OBJECTS_BETWEEN_SEARCHES = 100_000


class Compilation:
    """Compiles in a thread: first reset and step, for which a server waits before it answers, then
    what is needed less often: the grader, tasks that replay a trace, and ``step_many``."""

    def __init__(self) -> None:
        """Starts at once."""
        enable_compilation_cache()
        # A window is computed in the thread that asks for it: handing it to another takes longer.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self.ready: Future[None] = Future()
        """done when reset and step are compiled."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jaxserve-compile", daemon=True)
        self._thread.start()
        # For exits without a shutdown of the app, such as --help.
        atexit.register(self.end)

    @property
    def under_way(self) -> bool:
        """Whether something is still compiled, which a first request of its kind may wait for."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Starts nothing more and waits a while: a process that ends while XLA works is aborted."""
        self._ending.set()
        self._thread.join(_PATIENCE_S)

    def finish(self) -> None:
        """Waits for everything."""
        self._thread.join()

    def _run(self) -> None:
        try:
            _play(_FIRST)
        except BaseException as error:
            self.ready.set_exception(error)
            return
        self.ready.set_result(None)
        jobs: list[Callable[[], None]] = [_grade]
        jobs += [functools.partial(_play, task) for task in task_names()]
        jobs.append(functools.partial(_play_many, _FIRST))
        for job in jobs:
            if self._ending.is_set():
                return
            job()
        # What lives as long as the process is not searched for garbage again and again: with JAX
        # loaded each search stops all sessions for a quarter of a second.
        gc.freeze()
        # One request of ``step_many`` makes thousands of objects, none of them in a cycle.
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)


def _grade() -> None:
    try:
        grade_actions(_FIRST, 0, [DEFAULT_ACTION])
    except InputError as error:
        _LOG.warning("episodes of %s cannot be graded: %s", _FIRST, error)


def _play(task: str) -> None:
    episode = parse_episode(task, 0, "train", None)
    state, _ = engine.start(episode)
    engine.advance(engine.simulator(episode), state, engine.knobs_of(DEFAULT_ACTION))


def _play_many(task: str) -> None:
    episode = parse_episode(task, 0, "train", None)
    state, _ = engine.start(episode)
    engine.advance_many(engine.simulator(episode), [state], [engine.knobs_of(DEFAULT_ACTION)])


if __name__ == "__main__":
    # Fills the cache of compiled programs, for images in which nothing can be written later.
    compilation = Compilation()
    compilation.ready.result()
    compilation.finish()
