"""Listening sockets of servers that commands run, and uvicorn with their common options."""

from __future__ import annotations

import signal
import socket
from types import FrameType
from typing import Any

import uvicorn

from jaxserve.errors import InputError

BACKLOG = 2048


def listen(host: str, port: int, option: str) -> socket.socket:
    """A listening socket; port 0 takes a free port.

    Raises:
      InputError: the port cannot be used; ``option`` names it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise InputError(
            f"{option} is {port}, which cannot be used at {host}: {error.strerror}"
        ) from None


def address(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit(wanted: int) -> None:
    """Raises this process's limit of open files, often 1,024, up to the hard limit."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class CommandServer(uvicorn.Server):
    """Serves an application on open sockets, without a log; exit by a signal counts as success."""

    def __init__(self, application: Any, **options: Any) -> None:
        """Args: an ASGI application, and further options of ``uvicorn.Config``."""
        super().__init__(
            uvicorn.Config(
                application,
                ws="none",
                lifespan="on",
                log_level="error",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                **options,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops the server; a second Ctrl-C stops it at once."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
