"""The end of the server's process: in time, and with the code of its signal."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from server import app, ending
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    "told", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGTERM], []]
)
def test_computing_is_dropped_with_the_code_of_the_first_signal(told: list[int]) -> None:
    """Whatever still computes; a shutdown that no signal asked for ends as SIGTERM does."""
    calls = "".join(f"ending.told({int(sig)}); " for sig in told)
    code = f"import time; from server import ending; {calls}ending.end_in_time(); time.sleep(1e6)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 128 + (told or [signal.SIGTERM])[0]
    assert ended.stderr == "server: ended; what was still computed is dropped\n"


def test_the_end_takes_less_than_docker_waits() -> None:
    """Requests are answered for a while and computations for another, within ten seconds."""
    assert app._REQUESTS_END_S + ending._COMPUTING_S < 10.0
