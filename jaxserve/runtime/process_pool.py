"""Plain Python computations spread over processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from jaxserve.runtime.jax_setup import enable_compilation_cache

_Result = TypeVar("_Result")


def map_in_processes(
    function: Callable[..., _Result],
    jobs: Sequence[tuple[Any, ...]],
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[_Result]:
    """``function(*job)`` for every job, in the order of the jobs.

    Args:
      function: a module's function, which is pickled with the jobs.
      workers: processes, by default one per core; 1 computes in this process.
      progress: called with the numbers of finished jobs and of all jobs.

    Raises:
      The exception of the first job that fails, or KeyboardInterrupt; running jobs finish, queued
      ones are dropped.
    """
    results: list[Any] = [None] * len(jobs)

    def keep(index: int, result: _Result, done: int) -> None:
        results[index] = result
        if progress is not None:
            progress(done, len(jobs))

    if workers == 1:
        for index, job in enumerate(jobs):
            keep(index, function(*job), index + 1)
        return results
    # Forking a process that runs JAX's threads can hang.
    context = multiprocessing.get_context("spawn")
    count = workers or os.cpu_count()
    pool = concurrent.futures.ProcessPoolExecutor(count, context, enable_compilation_cache)
    # As a context manager, the pool would finish queued jobs as well.
    try:
        with _deaf_children():
            running = {pool.submit(function, *job): index for index, job in enumerate(jobs)}
        for done, each in enumerate(concurrent.futures.as_completed(running), start=1):
            keep(running[each], each.result(), done)
    finally:
        pool.shutdown(cancel_futures=True)
    return results


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that start in the block ignore Ctrl-C, which reaches all processes of a terminal.

    Children inherit that from this process, since one that is still importing cannot ignore signals
    by itself; this process handles the interrupt. Only the main thread can change handlers, and
    other threads receive no interrupts.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
