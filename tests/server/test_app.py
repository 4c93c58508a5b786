"""The command: two ports, a clean end, sentences instead of tracebacks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from server.local import free_port, own_process, wait_until_healthy

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


def test_one_server_listens_on_two_ports_and_ends_cleanly(tmp_path: Path) -> None:
    """7860 and 8000 in a container; a session is the same on both; SIGTERM is no crash."""
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with serve(tmp_path, "--port", str(ports[0]), "--port", str(ports[1])) as process:
        wait_until_healthy(urls[1], process)
        session_id = httpx.post(f"{urls[0]}/reset", timeout=300.0).json()["session_id"]
        state = httpx.get(f"{urls[1]}/state", params={"session_id": session_id}, timeout=60.0)
        assert state.json()["step_count"] == 0
        process.terminate()
        output, _ = process.communicate()
    # uvicorn hands the signal on once everything is closed.
    assert process.returncode == -signal.SIGTERM, output
    assert "Finished server process" in output
    for url in urls:
        assert f"server: {url} answers in a few seconds\n" in output
    assert not (tmp_path / "log-wal").exists()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    """And nothing is served."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, output = ended(serve(tmp_path, "--port", str(port)))
    assert code == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in output
    assert "Traceback" not in output


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    code, output = ended(serve(tmp_path, JAXSERVE_RATE_LIMIT="fast"))
    assert code == 2
    assert output.startswith("server: JAXSERVE_RATE_LIMIT is 'fast'")
    assert output.count("\n") == 1


def test_help_is_all_that_is_printed(tmp_path: Path) -> None:
    """The thread that has begun to compile is waited for."""
    code, output = ended(serve(tmp_path, "--help"))
    assert code == 0
    assert output.startswith("usage: ")
    assert "terminate" not in output
