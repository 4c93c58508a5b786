"""Servers in processes of their own: when they answer, when they do not, and how they end."""

from __future__ import annotations

import sys

import pytest

from jaxserve.runtime.child_server import child_server, free_ports, stop, wait_until_answers
from jaxserve.runtime.process_group import own_process

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
    """It is told to end, and the block's end does the rest."""
    with own_process(["sh", "-c", "trap '' TERM; echo; exec sleep 1000"], stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline()
        stop(process, within_s=0.1)
        assert process.poll() is None
    assert process.returncode == -9


def test_free_ports_differ() -> None:
    """However many are asked for."""
    assert len(set(free_ports(20))) == 20
