"""A server in a process of its own on this machine: for checks, tests and notebooks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

_START_S = 180.0
"""Programs may have to be compiled first."""
_STOP_S = 20.0


class LocalServer:
    """``with LocalServer(folder) as server: ... server.url``."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        app: str = "server.app:app",
    ) -> None:
        """Starts the process; ``wait`` for it.

        Args:
          folder: where its session log and what it prints go.
          port: None takes a free one.
          arguments: of uvicorn.
          variables: added to the environment.
          app: what uvicorn serves.
        """
        self.port = port or free_port()
        self.printed = folder / f"server-{self.port}.log"
        environment = {
            **os.environ,
            "JAXSERVE_DATABASE": str(folder / "sessions.sqlite3"),
            **(variables or {}),
        }
        command = [sys.executable, "-m", "uvicorn", app, "--port", str(self.port)]
        with self.printed.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, *arguments],
                cwd=Path(__file__).resolve().parents[1],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://127.0.0.1:{self.port}"

    def said(self) -> str:
        """What it has printed so far."""
        return self.printed.read_text(errors="replace")

    def wait(self) -> LocalServer:
        """Returns when it is healthy.

        Raises:
          RuntimeError: it ended, or took too long.
        """
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended by itself:\n{self.said()}")
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5.0):
                    return self
            except (OSError, urllib.error.URLError):
                time.sleep(0.05)
        raise RuntimeError(f"the server is not healthy after {_START_S:g} s:\n{self.said()}")

    def kill(self) -> None:
        """Ends it as the kernel would when memory runs out."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Ends it as an operator would."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> LocalServer:
        return self.wait()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
