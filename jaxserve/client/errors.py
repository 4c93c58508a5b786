"""What can go wrong between client and server."""

from __future__ import annotations


class ServerError(RuntimeError):
    """The server refused a request; the message is its sentence."""

    def __init__(self, message: str, code: str | int) -> None:
        """Args: the sentence, and an HTTP status or OpenEnv's error code."""
        super().__init__(message)
        self.code = code


class ConnectionLost(ConnectionError):
    """The server could not be reached, or not again, within the time allowed."""
