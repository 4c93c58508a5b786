"""Processes that end with their parent, and servers among them: start, answers, end."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxserve.runtime import child_processes
from jaxserve.runtime.child_processes import (
    child_server,
    free_ports,
    own_process,
    ports_in_a_row,
    stop,
    wait_until_answers,
)
from tests.patience import PATIENCE_S, alive, wait_until

_PARENT = """
import sys, time
from jaxserve.runtime.child_processes import own_process
with own_process(["sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; wait"], stdout=sys.stdout):
    time.sleep(1000)
"""

_SERVER = """
import http.server, sys
class Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()
    def log_message(self, *said):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Door).serve_forever()
"""


def _wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(alive, pids)), "the end of all")


def _started(output: str) -> list[int]:
    return [int(pid) for pid in output.split()]


def test_it_ends_with_the_block() -> None:
    """And what it started with it, however deaf they are."""
    command = ["sh", "-c", "trap '' TERM; sleep 1000 & echo $$ $!; wait"]
    with own_process(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        started = _started(process.stdout.readline())
        assert len(started) == 2 and all(map(alive, started))
    assert process.returncode != 0
    _wait_until_gone(started)


def test_it_ends_with_a_parent_that_is_killed() -> None:
    """Which can clean up nothing."""
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        started = _started(it.stdout.readline())
        it.kill()
    assert len(started) == 2
    _wait_until_gone(started)


def test_its_own_end_is_its_own() -> None:
    """The group's leader does not stand in the way of who waits for it."""
    with own_process([sys.executable, "-c", "raise SystemExit(3)"]) as process:
        assert process.wait(PATIENCE_S) == 3


def test_what_cannot_be_started(tmp_path: Path) -> None:
    """Is said by the system, and leaves no leader behind."""
    before = set(psutil.Process().children())
    with pytest.raises(FileNotFoundError), own_process([str(tmp_path / "none")]):
        raise AssertionError
    assert set(psutil.Process().children()) <= before


def test_it_answers_while_the_block_runs() -> None:
    """From the first answer to the end of the block; an error is an answer only where it may be."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with child_server([sys.executable, "-c", _SERVER, str(port)], f"{url}/health") as process:
        assert process.poll() is None
        wait_until_answers(f"{url}/sick", process, any_status=True)
        with pytest.raises(RuntimeError, match=f"does not answer {url}/sick after 0.2 s"):
            wait_until_answers(f"{url}/sick", process, start_s=0.2)
    assert process.returncode == -15


def test_one_that_ends_by_itself_is_not_waited_for() -> None:
    """Whoever else answers at its address."""
    with (
        pytest.raises(RuntimeError, match="the server ended by itself"),
        child_server([sys.executable, "-c", ""], "http://127.0.0.1:9/health"),
    ):
        raise AssertionError


def test_one_that_is_deaf_is_not_waited_for_either() -> None:
    """The process is told to end, and the end of the block waits for it."""
    with own_process(["sh", "-c", "trap '' TERM; echo; exec sleep 1000"], stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()
        stop(process, within_s=0.1)
        assert process.poll() is None
    assert process.returncode == -9


def test_free_ports_differ() -> None:
    """However many are asked for."""
    assert len(set(free_ports(20))) == 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let no server listen then")
def test_a_drawn_port_is_given_to_nobody_else() -> None:
    """It can be drawn once, also by another process, and a server can listen on it twice."""
    ports = ports_in_a_row(2)
    with pytest.raises(OSError, match="in use"):
        child_processes._drawn(ports[:1])
    program = f"from jaxserve.runtime import child_processes as c; c._drawn([{ports[1]}])"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "in use" in other.stderr
    for _ in range(2):
        with socket.create_server(("127.0.0.1", ports[0])) as server:
            with socket.create_connection(("127.0.0.1", ports[0])):
                server.accept()[0].close()
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", ports[0]))
