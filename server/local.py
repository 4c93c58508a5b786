"""A server in a child process, for checks, tests and notebooks."""

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
    """A server in a child process: ``with LocalServer(folder) as server: ... server.url``."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        app: str = "server.app:app",
    ) -> None:
        """Starts the process; ``wait`` returns when it is ready.

        Args:
          folder: folder of the session log and of the printed output.
          port: port to listen on; None takes a free one.
          arguments: further arguments of uvicorn.
          variables: variables added to the environment.
          app: import path of the application.
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
        """Output that the server has printed so far."""
        return self.printed.read_text(errors="replace")

    def wait(self) -> LocalServer:
        """Returns when the server answers ``/health``.

        Raises:
          RuntimeError: the process ended, or took too long.
        """
        try:
            # A server whose log has a fault answers with an error status.
            wait_until_answers(f"{self.url}/health", self.process, any_status=True)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.said()}") from None
        return self

    def kill(self) -> None:
        """Kills the process, as the kernel would without memory."""
        self._end.close()

    def stop(self) -> None:
        """Stops the process by TERM."""
        stop(self.process, _STOP_S)
        self.kill()

    def __enter__(self) -> LocalServer:
        return self.wait()

    def __exit__(self, *exception: object) -> None:
        self.stop()


def free_port() -> int:
    """An unused port of this machine."""
    return free_ports(1)[0]
