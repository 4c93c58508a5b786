"""The end of the server's process: in time, and with the code of its signal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from jaxserve.runtime.child_processes import own_process, wait_until_answers
from server import app, shutdown
from server.local import free_port
from tests.patience import PATIENCE_S, wait_until

_ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "told", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGTERM], []]
)
def test_computing_is_dropped_with_the_code_of_the_first_signal(told: list[int]) -> None:
    """Whatever still computes; a shutdown that no signal asked for ends as SIGTERM does."""
    calls = "".join(f"shutdown.remember_signal({int(sig)}); " for sig in told)
    code = (
        f"import time; from server import shutdown; {calls}shutdown.end_in_time(); time.sleep(1e6)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 128 + (told or [signal.SIGTERM])[0]
    assert ended.stderr == "server: ended; what was still computed is dropped\n"


def test_the_end_takes_less_than_docker_waits() -> None:
    """Requests are answered for a while and computations for another, within ten seconds."""
    assert app._REQUESTS_END_S + shutdown._COMPUTING_S < 10.0


@contextlib.contextmanager
def cold_server(folder: Path, workers: int) -> Iterator[tuple[subprocess.Popen[bytes], str, Path]]:
    """One that has nothing compiled yet, its address, and what it prints."""
    port = free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--workers", str(workers)]
    variables = {
        "JAXSERVE_DATABASE": str(folder / "log"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
        "JAXSERVE_COMPILE_AHEAD": "1",
    }
    printed = folder / "printed"
    with (
        printed.open("wb") as output,
        own_process(
            [sys.executable, "-m", "server.app", *options],
            cwd=_ROOT,
            env=os.environ | variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        yield process, f"http://127.0.0.1:{port}", printed


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "sig"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_server_that_starts_ends_at_once(tmp_path: Path, workers: int, sig: int) -> None:
    """Every process of it says so, and none waits for what it compiles."""
    with cold_server(tmp_path, workers) as (process, _, printed):
        waiting = "Waiting for application startup"
        wait_until(lambda: printed.read_text().count(waiting) == workers, waiting)
        process.send_signal(sig)
        process.wait(PATIENCE_S)
        said = printed.read_text()
    assert said.count("server: ended before it could answer\n") == workers, said
    assert process.returncode == (128 + sig if workers == 1 else 0)
    assert "Traceback" not in said and "Application startup complete" not in said


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_a_server_that_computes_ends_by_itself(tmp_path: Path, workers: int) -> None:
    """While it compiles and plays for somebody: with the code of its signal, and the sentence where
    it did not wait any longer."""
    with cold_server(tmp_path, workers) as (process, url, printed):
        wait_until_answers(f"{url}/health", process)
        complete = "Application startup complete"
        wait_until(lambda: printed.read_text().count(complete) == workers, complete)

        def ask() -> None:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/baseline", params={"agent": "ppo"}, timeout=PATIENCE_S)

        asking = threading.Thread(target=ask)
        asking.start()
        # Its first windows wait for what is compiled.
        asking.join(1.0)
        assert httpx.get(f"{url}/runtime", timeout=PATIENCE_S).json()["compiling"]
        process.terminate()
        process.wait(PATIENCE_S)
        asking.join()
        said = printed.read_text()
    dropped = said.count("server: ended; what was still computed is dropped\n")
    finished = said.count("Finished server process")
    # One that has finished may be told to drop what holds up its exit.
    assert workers <= dropped + finished <= 2 * workers, said
    codes = {128 + signal.SIGTERM, -signal.SIGTERM} if workers == 1 else {0}
    assert process.returncode in codes, said
