"""Plain Python computations spread over processes, by joblib.

joblib's ``parallel_config`` chooses where they run: processes of this machine (loky) unless it
names a backend of a cluster, such as that of Ray or Dask.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import joblib
from joblib.parallel import get_active_backend

from jaxserve.runtime.jax_setup import enable_compilation_cache
from jaxserve.runtime.ray_cluster import connected_ray

_Result = TypeVar("_Result")


def in_processes(
    function: Callable[..., _Result], jobs: Sequence[tuple[Any, ...]], workers: int | None = None
) -> Iterator[_Result]:
    """Yields ``function(*job)`` of every job as it comes, in the order of the jobs.

    Args:
      function: a module's function, which is pickled with the jobs.
      workers: processes, by default one per core, or all of a cluster; 1 computes in this process.

    Raises:
      The exception of the first job that fails, or KeyboardInterrupt; jobs not begun are dropped.
    """
    if workers == 1 or not jobs:
        yield from (function(*job) for job in jobs)
        return
    # Workers whose compiled programs have grown large are replaced, which changes no result.
    warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
    # Ray's backend gives all results at the end.
    as_they_come = getattr(get_active_backend()[0], "supports_return_generator", False)
    return_as = "generator" if as_they_come else "list"
    parallel = joblib.Parallel(workers or -1, return_as=return_as)
    with _deaf_children():
        results: Any = parallel(joblib.delayed(_prepared)(function, job) for job in jobs)
    yield from results


def map_in_processes(
    function: Callable[..., _Result],
    jobs: Sequence[tuple[Any, ...]],
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[_Result]:
    """List of the results of ``in_processes``.

    Args:
      function, jobs, workers: see ``in_processes``.
      progress: called with the numbers of finished jobs and of all jobs.
    """
    results: list[_Result] = []
    for result in in_processes(function, jobs, workers):
        results.append(result)
        if progress is not None:
            progress(len(results), len(jobs))
    return results


def cores() -> int:
    """Jobs that the chosen backend runs at a time: the cores of this machine, or of a cluster."""
    return joblib.effective_n_jobs(-1)


@contextlib.contextmanager
def on_backend(name: str) -> Iterator[None]:
    """Runs jobs on a backend of joblib while the block runs.

    Args:
      name: ``loky`` for processes here, or ``ray`` for the cluster of ``RAY_ADDRESS``; without that
        variable Ray starts a cluster on this machine.

    Raises:
      InputError: Ray is not installed, or its cluster cannot be reached.
    """
    if name == "ray":
        connected_ray()
        from ray.util.joblib import register_ray  # type: ignore[import-not-found]

        register_ray()
    with joblib.parallel_config(backend=name):
        yield


def _prepared(function: Callable[..., _Result], job: tuple[Any, ...]) -> _Result:
    enable_compilation_cache()
    return function(*job)


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
