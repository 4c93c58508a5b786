"""A server of uvicorn in a thread of the tests' process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import uvicorn

from tests.patience import PATIENCE_S, wait_until


class ServerThread:
    """It runs from ``start`` to ``stop``."""

    def __init__(self, server: uvicorn.Server, sockets: Sequence[socket.socket]) -> None:
        """Args: sockets that listen already."""
        self._server = server
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": list(sockets)}, daemon=True
        )

    def start(self) -> None:
        """Returns when it answers."""
        self._thread.start()
        wait_until(lambda: self._server.started)

    def stop(self, *, at_once: bool = False) -> None:
        """Ends it as a signal would, or as a second one, which waits for no request."""
        self._server.force_exit = at_once
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
