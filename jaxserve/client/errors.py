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


class TryLater(ConnectionLost):
    """The server, or a proxy before it, is not there for this client just now."""

    def __init__(self, message: str, wait_s: float | None, undone: bool) -> None:
        """Args: the sentence, how long it asks to wait, whether it has surely done nothing."""
        super().__init__(message)
        self.wait_s, self.undone = wait_s, undone
