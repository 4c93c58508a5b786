"""A server in a process of its own on this machine: for checks, tests and notebooks."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jaxserve.runtime.child_processes import free_ports, own_process, stop, wait_until_answers

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
            # One that says what is wrong with its log answers, too.
            wait_until_answers(f"{self.url}/health", self.process, any_status=True)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.said()}") from None
        return self

    def kill(self) -> None:
        """Ends it as the kernel would when memory runs out."""
        self._end.close()

    def stop(self) -> None:
        """Ends it as an operator would."""
        stop(self.process, _STOP_S)
        self.kill()

    def __enter__(self) -> LocalServer:
        return self.wait()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    return free_ports(1)[0]
