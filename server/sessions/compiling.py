"""Compiles programs in a thread of its own, mostly before a request needs them."""

from __future__ import annotations

import atexit
import gc
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import jax

from jaxserve.errors import InputError
from jaxserve.grading import grade_actions
from jaxserve.runtime.jax_setup import enable_compilation_cache
from jaxserve.spaces import DEFAULT_ACTION
from jaxserve.tasks.spec import task_names
from server.sessions import programs
from server.sessions.episodes import parse_episode
from server.sessions.programs import Simulator

_LOG = logging.getLogger("jaxserve.server")
_FIRST = "static_workload"
_PATIENCE_S = 30.0

Job = Callable[[], None]


class Compiler(Protocol):
    """Compiles the programs of ``server.sessions.programs``; see ``Compilation``."""

    @property
    def ready(self) -> Future[None]:
        """Done when the first sessions can be played."""
        ...

    def compiled(self, simulator: Simulator, *, together: bool) -> Future[None]:
        """Done when sessions of a simulator's structure can be begun and advanced.

        Args:
          together: many at a time, instead of one.
        """
        ...


class Compilation:
    """A ``Compiler`` with a thread.

    Reset and step are compiled first: the server waits for them before it answers. The programs of
    all tasks follow, and those that requests wait for take precedence.
    """

    def __init__(self, ahead: bool = True) -> None:
        """Starts at once. Args: whether to compile programs before a request needs them."""
        self._ahead = ahead
        enable_compilation_cache()
        # A window is computed in the calling thread: handing it to another takes longer.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._ready: Future[None] = Future()
        self._settled = threading.Event()
        self._ending = False
        self._asked: OrderedDict[tuple[object, bool], tuple[Simulator, Future[None]]]
        self._asked = OrderedDict()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="jaxserve-compile", daemon=True)
        self._thread.start()
        # For exits without a shutdown of the app, such as --help.
        atexit.register(self.end)

    @property
    def ready(self) -> Future[None]:
        """See ``Compiler``."""
        return self._ready

    @property
    def under_way(self) -> bool:
        """Whether programs are being compiled, for which a first request of a kind may wait."""
        return bool(self._asked) or not self._settled.is_set()

    def compiled(self, simulator: Simulator, *, together: bool) -> Future[None]:
        """See ``Compiler``; safe to call from any thread but the compiling one."""
        future: Future[None] = Future()
        if programs.is_compiled(simulator, together=together):
            future.set_result(None)
            return future
        with self._changed:
            if self._ending:
                future.cancel()
                return future
            key = (simulator.layout, together)
            _, future = self._asked.setdefault(key, (simulator, future))
            self._changed.notify()
        return future

    def end(self) -> None:
        """Stops after the program under way: a process that ends while XLA compiles aborts."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self._thread.join(_PATIENCE_S)

    def finish(self) -> None:
        """Waits for all programs that are compiled ahead."""
        self._settled.wait()

    def _run(self) -> None:
        try:
            _compile(_simulator(_FIRST), together=False)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        for job in _jobs() if self._ahead else []:
            while self._answer_one():
                pass
            if self._ending:
                break
            job()
        # Freeze imported objects: with JAX loaded, a full collection stalls all sessions for a
        # quarter of a second.
        gc.freeze()
        self._settled.set()
        while not self._ending:
            if not self._answer_one():
                with self._changed:
                    self._changed.wait_for(lambda: self._ending or self._asked)
        with self._changed:
            for _, future in self._asked.values():
                future.cancel()

    def _answer_one(self) -> bool:
        """Compiles the program that was requested first; False if there is none."""
        with self._changed:
            if not self._asked or self._ending:
                return False
            key, (simulator, future) = next(iter(self._asked.items()))
        error: BaseException | None = None
        try:
            _compile(simulator, together=key[1])
        except Exception as failure:
            error = failure
        with self._changed:
            del self._asked[key]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return True


def _jobs() -> list[Job]:
    jobs: list[Job] = [_grade]
    for together in (False, True):
        for task in task_names():
            jobs.append(lambda task=task, many=together: _compile(_simulator(task), together=many))
    return jobs


def _grade() -> None:
    try:
        grade_actions(_FIRST, 0, [DEFAULT_ACTION])
    except InputError as error:
        _LOG.warning("episodes of %s cannot be graded: %s", _FIRST, error)


def _simulator(task: str) -> Simulator:
    return programs.simulator(parse_episode(task, 0, "train", None))


def _compile(simulator: Simulator, *, together: bool) -> None:
    if not programs.is_compiled(simulator, together=together):
        programs.try_out(simulator, together=together)


if __name__ == "__main__":
    # Fills the compilation cache, for container images without a writable folder.
    compilation = Compilation()
    compilation.ready.result()
    compilation.finish()
