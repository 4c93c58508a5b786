"""Servers of uvicorn in threads of the tests' process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Self

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

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


class FakeServer:
    """``with FakeServer(routes) as server: ... server.url``, the base of fake engines."""

    def __init__(self, routes: Sequence[BaseRoute], port: int = 0) -> None:
        """Args: routes, and the port to listen on; 0 takes a free one."""
        listening = socket.create_server(("127.0.0.1", port), backlog=2048)
        self.port = listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        config = uvicorn.Config(
            Starlette(routes=list(routes)), log_level="critical", lifespan="off"
        )
        self._thread = ServerThread(uvicorn.Server(config), [listening])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops at once, without waiting for open requests."""
        self._thread.stop(at_once=True)
