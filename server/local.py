"""A server in a process of its own on this machine: for checks, tests and notebooks."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxserve.runtime.process_group import own_process

_START_S = 300.0
"""Programs may have to be compiled first."""
_STOP_S = 20.0


def wait_until_healthy(url: str, process: subprocess.Popen[Any]) -> None:
    """Returns when the server at an address answers.

    Raises:
      RuntimeError: its process ended, or it took too long.
    """
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the server ended by itself")
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5.0):
                return
        except urllib.error.HTTPError:
            # It answers, and says what is wrong with its log.
            return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise RuntimeError(f"the server is not healthy after {_START_S:g} s")


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
        self._end = contextlib.ExitStack()
        with self.printed.open("ab") as output:
            own = own_process(
                [*command, *arguments],
                cwd=Path(__file__).resolve().parents[1],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            self.process = self._end.enter_context(own)

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
        try:
            wait_until_healthy(self.url, self.process)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.said()}") from None
        return self

    def kill(self) -> None:
        """Ends it as the kernel would when memory runs out."""
        self._end.close()

    def stop(self) -> None:
        """Ends it as an operator would."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)
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
