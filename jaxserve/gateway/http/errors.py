"""Errors of requests: a status, a reason that can be counted, and one sentence for the client."""

from __future__ import annotations


class RequestError(Exception):
    """A request ends without the engine's answer; ``str()`` is one sentence for the client."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after_s: int | None = None
    ) -> None:
        """Args:
        status: of the response.
        reason: word in metrics and records.
        message: sentence without addresses and keys.
        retry_after_s: seconds to wait; None where the same request would fail again.
        """
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


# Functions, because an exception that is raised repeatedly keeps every frame it passed.
def client_left() -> RequestError:
    """The client closed its connection; only the record shows the status 499."""
    return RequestError(499, "client_left", "the client closed its connection")


def client_stalled() -> RequestError:
    """The client does not read its response; only the record shows the status 499."""
    return RequestError(499, "client_stalled", "the client did not read its answer")


def stopping() -> RequestError:
    """The gateway shuts down."""
    return RequestError(503, "gateway_stopping", "the gateway is stopping; try again later", 5)


def outcome(reason: str) -> str:
    """Outcome that a reason belongs to.

    Returns:
      ``completed`` for an empty reason, ``rejected`` under overload or a pause, ``cancelled`` by
      the client, or ``failed``.
    """
    if not reason:
        return "completed"
    if reason in ("queue_full", "too_many_requests", "queue_timeout", "paused", "engine_429"):
        return "rejected"
    return "cancelled" if reason in ("client_left", "client_stalled") else "failed"
