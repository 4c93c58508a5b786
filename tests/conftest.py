"""Setup of all tests: compiled programs outlive a run, examples are reproducible, and tests that
need no server of their own share one."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import absl.logging
import psutil
import pytest
from hypothesis import HealthCheck, settings

from jaxserve.runtime.jax_setup import collect_garbage_rarely
from server.local import LocalServer
from tests.patience import wait_until
from tests.processor_time import ProcessorTime
from tests.quick_compiler import compile_quickly, programs_compute

StartServer = Callable[..., LocalServer]
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_LARGE_BYTES = psutil.virtual_memory().total / 2 / _WORKERS
_MANY_MAPS = 30_000
"""Memory maps of a process, of which Linux grants 65,530; a program holds up to a thousand."""
_KINDS = ("deep", "slow", "fast")
"""Kinds of tests, the longest first."""
_PROCESSOR_TIME = ProcessorTime()

# JAX reads these when it is first imported, and the commands that tests start inherit them.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".jax_cache")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Finished searches are kept with the programs, and not in the cache of whoever runs the tests.
os.environ["XDG_CACHE_HOME"] = os.environ["JAX_COMPILATION_CACHE_DIR"]
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A server would compile the programs of all tasks ahead, of which a test asks for one or two.
os.environ.setdefault("JAXSERVE_COMPILE_AHEAD", "0")

# A background job of a shell ignores Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example of a jitted function pays for compilation, so a deadline would time XLA. The
# option --hypothesis-profile=deep chooses the other profile.
for name, examples in (("ci", 25), ("deep", 200)):
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Nearly every test waits for the compiler; a run says which files take most."""
    compile_quickly()
    collect_garbage_rarely()
    # absl closes the stream of its import when logging is configured anew, as uvicorn does; that is
    # pytest's own if a test has another one by then.
    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__
    config.pluginmanager.register(_PROCESSOR_TIME)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with deep tests first, then files with slow tests: a long file that is begun last keeps
    all workers but one waiting."""
    rank: dict[Path, int] = {}
    for item in items:
        kind = next((name for name in _KINDS if item.get_closest_marker(name)), "fast")
        rank[item.path] = min(_KINDS.index(kind), rank.get(item.path, len(_KINDS)))
    items.sort(key=lambda item: rank[item.path])


def pytest_collection_finish() -> None:
    """One device in every worker, whichever test is its first: a command would make one of every
    core, and a program that was kept for one number of devices is none for another."""
    if "jax" in sys.modules:
        sys.modules["jax"].devices()


@pytest.fixture(scope="session", autouse=True)
def _nothing_goes_on_computing() -> Iterator[None]:
    """A thread that a test left, and that never pauses, takes a core from all later tests."""
    yield
    names = ", ".join(thread.name for thread in threading.enumerate())
    wait_until(_rests, f"an end of computing in the threads {names}")


def _rests() -> bool:
    """Whether this process takes less than half a processor for a moment."""
    before_s = time.process_time()
    time.sleep(0.2)
    return time.process_time() - before_s < 0.1


@pytest.fixture(scope="module", autouse=True)
def _programs_find_room() -> Iterator[None]:
    """Drops compiled programs after a file that leaves the process large.

    Workers that keep all of their programs may fill the memory of a machine within half an hour.
    Programs that a later file needs are in the cache on disk, yet have to be traced again.
    """
    yield
    if "jax" in sys.modules and (
        psutil.Process().memory_info().rss > _LARGE_BYTES or _memory_maps() > _MANY_MAPS
    ):
        sys.modules["jax"].clear_caches()
        if "chex" in sys.modules:  # which counts how often a function was traced
            sys.modules["chex"].clear_trace_counter()
        gc.collect()
        # glibc keeps what the compiler freed until it is asked for it.
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)


def _memory_maps() -> int:
    """Memory maps of this process; 0 where the system does not tell."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else 0


@pytest.fixture(scope="module")
def computing_programs() -> Iterator[None]:
    """For files whose programs compute for longer than they compile."""
    with programs_compute():
        yield


@contextmanager
def _servers(factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers in processes of their own, which end with the block: one takes most of a
    gigabyte, and a run starts dozens."""
    started: list[LocalServer] = []

    def start(
        folder: Path | None = None,
        port: int | None = None,
        arguments: tuple[str, ...] = (),
        **variables: str,
    ) -> LocalServer:
        chosen = folder or factory.mktemp("server")
        server = LocalServer(chosen, port=port, arguments=arguments, variables=variables)
        started.append(server)
        return server.wait()

    try:
        yield start
    finally:
        for server in started:
            server.stop()


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers for one test: ``start_server(JAXSERVE_TOKEN="x")``."""
    with _servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_servers_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers for the tests of a file."""
    with _servers(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of asynchronous tests, which bear the marker ``anyio``."""
    return "asyncio"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """One server with default settings that many tests share; no file is charged with its time."""
    with _servers(tmp_path_factory) as start:
        yield start()
    _PROCESSOR_TIME.restart()


@pytest.fixture(scope="session", autouse=True)
def _state_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs keep for their user is kept here, and nothing of the user's is found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("user")))
        yield


_DIED = pytest.StashKey[bool]()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Notes that a worker of pytest-xdist ended by itself.

    The test that it ran, if any, is reported as failed; between tests it would go unpunished.
    """
    if error:
        node.config.stash[_DIED] = True


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which a worker died has failed."""
    if session.exitstatus == pytest.ExitCode.OK and session.config.stash.get(_DIED, False):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
