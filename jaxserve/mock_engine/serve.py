"""The mock engine's server process."""

from __future__ import annotations

import gc
import logging
import socket
import sys

from jaxserve.mock_engine.app import MockEngine
from jaxserve.mock_engine.clock import ScaledClock
from jaxserve.mock_engine.machine import Machine, build_machine
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.runtime.listening import CommandServer, address, listen
from jaxserve.sim.machine.memory import BLOCK_TOKENS

_GRACE_S = 1
"""Seconds for open responses at shutdown."""


def open_mock_engine(machine: Machine) -> tuple[CommandServer, socket.socket]:
    """A server that is ready to run, and its socket.

    Raises:
      InputError: the port is taken, or an environment variable of the control routes is invalid.
    """
    settings = machine.settings
    engine = MockEngine(machine, ScaledClock(settings.speed))
    server = CommandServer(engine, timeout_graceful_shutdown=_GRACE_S)
    return server, listen(settings.host, settings.port, "--port")


def run(settings: MockEngineSettings) -> None:
    """Serves until the process gets a signal to stop.

    Raises:
      InputError: a setting is invalid, or the port is taken.
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
    # Freeze imported objects: a full collection would stall all streams.
    gc.freeze()
    server.run(sockets=[listening])
