"""The mock engine as a process."""

from __future__ import annotations

import gc
import logging
import signal
import socket
import sys
from types import FrameType

import uvicorn

from jaxserve.mock_engine.app import MockEngine
from jaxserve.mock_engine.clock import ScaledClock
from jaxserve.mock_engine.machine import BLOCK_TOKENS, Machine, build_machine
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.runtime.listening import BACKLOG, address, listen

_GRACE_S = 1
"""For answers that are under way when the process is told to stop."""


class MockServer(uvicorn.Server):
    """uvicorn whose end by a signal is a success."""

    def __init__(self, engine: MockEngine) -> None:
        """Args: what is served."""
        super().__init__(
            uvicorn.Config(
                engine,
                ws="none",
                lifespan="on",
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C ends at once."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def open_mock_engine(machine: Machine) -> tuple[MockServer, socket.socket]:
    """A server that is ready to run, with its socket.

    Raises:
      InputError: the port is taken, or a variable of the control endpoint cannot be.
    """
    settings = machine.settings
    engine = MockEngine(machine, ScaledClock(settings.speed))
    return MockServer(engine), listen(settings.host, settings.port, "--port")


def run(settings: MockEngineSettings) -> None:
    """Serves until it is told to stop.

    Raises:
      InputError: settings that cannot be, or a port that is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    machine = build_machine(settings)
    server, listening = open_mock_engine(machine)
    print(
        f"jaxserve: {settings.served_name} as on {settings.hardware} at {address(listening)}, "
        f"{machine.kv_blocks * BLOCK_TOKENS} KV tokens",
        file=sys.stderr,
        flush=True,
    )
    # What is imported stays: looking through it for garbage would stop all streams for a while.
    gc.freeze()
    server.run(sockets=[listening])
