"""The command: two ports, a clean end, sentences instead of tracebacks."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
import uvicorn
from websockets.sync.client import connect

from jaxserve.runtime.child_processes import own_process, wait_until_answers
from server import app
from server.app import option_parser
from server.local import free_port
from server.server_settings import Settings
from tests.patience import PATIENCE_S

Own = AbstractContextManager[subprocess.Popen[str]]
_ROOT = Path(__file__).resolve().parents[2]


def serve(folder: Path, *arguments: str, **variables: str) -> Own:
    return own_process(
        [sys.executable, "-m", "server.app", "--host", "127.0.0.1", *arguments],
        cwd=_ROOT,
        env={**os.environ, "JAXSERVE_DATABASE": str(folder / "log"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(own: Own) -> tuple[int, str]:
    """Return code and output of a command that ends by itself."""
    with own as process:
        output, _ = process.communicate()
        return process.returncode, output


@pytest.mark.slow
def test_one_server_listens_on_two_ports_and_ends_cleanly(tmp_path: Path) -> None:
    """7860 and 8000 in a container; a session is the same on both; SIGTERM is no crash."""
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with serve(tmp_path, "--port", str(ports[0]), "--port", str(ports[1])) as process:
        wait_until_answers(f"{urls[1]}/health", process)
        session_id = httpx.post(f"{urls[0]}/reset", timeout=300.0).json()["session_id"]
        state = httpx.get(f"{urls[1]}/state", params={"session_id": session_id}, timeout=300.0)
        assert state.json()["step_count"] == 0
        process.terminate()
        output, _ = process.communicate()
    # uvicorn hands the signal on once everything is closed, but for what is still compiled.
    ends = {-signal.SIGTERM: "Finished server process", 128 + signal.SIGTERM: "server: ended; "}
    assert ends[process.returncode] in output
    for url in urls:
        assert f"server: {url} answers in a few seconds\n" in output
    assert not (tmp_path / "log-wal").exists()


@pytest.mark.slow
def test_endless_headers_and_silence_end_a_connection(tmp_path: Path) -> None:
    """Before the token is looked at; 300 MB of headers would be read otherwise."""
    port = free_port()
    with serve(tmp_path, "--port", str(port), JAXSERVE_TOKEN="secret") as process:
        wait_until_answers(f"http://127.0.0.1:{port}/health", process)
        with socket.create_connection(("127.0.0.1", port), 60.0) as client:
            client.sendall(b"GET /tasks HTTP/1.1\r\nHost: x\r\n")
            sent = 0
            with contextlib.suppress(OSError):
                for number in range(2000):
                    client.sendall(b"x-%d: " % number + b"y" * 4000 + b"\r\n")
                    sent += 4000
        assert sent < 4 * 2**20, "it should have been cut off"
        # A WebSocket that stays does not hold up the end.
        with connect(
            f"ws://127.0.0.1:{port}/ws", additional_headers={"Authorization": "Bearer secret"}
        ) as player:
            player.send('{"type": "reset", "data": {}}')
            player.recv()
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


@pytest.mark.parametrize("shortened", [["--worker", "4"], ["--forwarded-allow", "10.0.0.7"]])
def test_a_shortened_option_is_refused(
    shortened: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever reads the command line for the settings would not see it."""
    with pytest.raises(SystemExit):
        option_parser().parse_args(shortened)
    assert f"unrecognized arguments: {' '.join(shortened)}" in capsys.readouterr().err


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """And nothing is served."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = ended(serve(tmp_path, "--port", str(port)))
    assert code == 2
    assert f"--port is {port}, which cannot be used at 127.0.0.1" in output
    assert "Traceback" not in output


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    code, output = ended(serve(tmp_path, JAXSERVE_RATE_LIMIT="fast"))
    assert code == 2
    assert output.startswith("server: JAXSERVE_RATE_LIMIT is 'fast'")
    assert output.count("\n") == 1


def test_help_is_all_that_is_printed(tmp_path: Path) -> None:
    """Nothing is started for it."""
    code, output = ended(serve(tmp_path, "--help"))
    assert code == 0
    assert output.startswith("usage: ")
    assert "terminate" not in output


def test_a_client_that_answers_no_ping_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A trainer that generates for a minute answers none; only silence ends a connection."""
    served: list[uvicorn.Config] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: served.append(self.config))
    app._serve(Settings.from_environment(), [], access_log=False)
    assert served[0].ws_ping_timeout is None and served[0].ws_ping_interval


@pytest.mark.slow
def test_the_access_log_names_no_session(tmp_path: Path) -> None:
    """A line for each request where that is asked for; a query may name a session."""
    port = free_port()
    with serve(tmp_path, "--port", str(port), "--access-log") as process:
        wait_until_answers(f"http://127.0.0.1:{port}/health", process)
        httpx.get(f"http://127.0.0.1:{port}/state", params={"session_id": "mine"}, timeout=300.0)
        process.terminate()
        output, _ = process.communicate()
    assert '"GET /state HTTP/1.1" 404' in output
    assert "mine" not in output
