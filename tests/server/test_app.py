"""The command: two ports, a clean end, sentences instead of tracebacks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from server.local import free_port

_ROOT = Path(__file__).resolve().parents[2]


def serve(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "server.app", "--host", "127.0.0.1", *arguments],
        cwd=_ROOT,
        env={**os.environ, "JAXSERVE_DATABASE": str(folder / "log"), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_one_server_listens_on_two_ports_and_ends_cleanly(tmp_path: Path) -> None:
    """7860 and 8000 in a container; a session is the same on both; SIGTERM is no crash."""
    ports = [free_port(), free_port()]
    process = serve(tmp_path, "--port", str(ports[0]), "--port", str(ports[1]))
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    try:
        deadline = time.monotonic() + 180.0
        while time.monotonic() < deadline and process.poll() is None:
            try:
                httpx.get(f"{urls[1]}/health")
                break
            except httpx.TransportError:
                time.sleep(0.1)
        session_id = httpx.post(f"{urls[0]}/reset", timeout=60.0).json()["session_id"]
        state = httpx.get(f"{urls[1]}/state", params={"session_id": session_id}, timeout=60.0)
        assert state.json()["step_count"] == 0
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
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
        process = serve(tmp_path, "--port", str(port))
        output, _ = process.communicate(timeout=180)
    assert process.returncode == 2
    assert f"port {port} of 127.0.0.1 cannot be used" in output
    assert "Traceback" not in output


def test_a_wrong_setting_is_named(tmp_path: Path) -> None:
    """Before anything is started."""
    process = serve(tmp_path, JAXSERVE_RATE_LIMIT="fast")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 2
    assert output.startswith("server: JAXSERVE_RATE_LIMIT is 'fast'")
    assert output.count("\n") == 1


def test_help_is_all_that_is_printed(tmp_path: Path) -> None:
    """The thread that has begun to compile is waited for."""
    process = serve(tmp_path, "--help")
    output, _ = process.communicate(timeout=180)
    assert process.returncode == 0
    assert output.startswith("usage: ")
    assert "terminate" not in output
