"""Sockets of the servers that commands run."""

from __future__ import annotations

import socket

from jaxserve.errors import InputError

BACKLOG = 2048


def listen(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens; port 0 takes a free one.

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
    """The URL at which a socket listens."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
