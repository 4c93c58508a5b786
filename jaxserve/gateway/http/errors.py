"""Why a request is not answered: one sentence, a status, and a reason that can be counted."""

from __future__ import annotations


class Problem(Exception):
    """A request that ends without the engine's answer; ``str()`` is one sentence for the client."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after_s: int | None = None
    ) -> None:
        """Args:
        status: of the answer.
        reason: a word in metrics and records.
        message: without addresses and keys.
        retry_after_s: None where the same request would fail again.
        """
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


# Functions, because an exception that is raised again and again keeps every frame it passed.
def client_left() -> Problem:
    """Nobody is there to be told; 499 stands in the record."""
    return Problem(499, "client_left", "the client closed its connection")


def client_stalled() -> Problem:
    """Nobody reads what it would be told."""
    return Problem(499, "client_stalled", "the client did not read its answer")


def stopping() -> Problem:
    """The gateway ends."""
    return Problem(503, "gateway_stopping", "the gateway is stopping; try again later", 5)


def outcome_of(reason: str) -> str:
    """``completed`` where there is no reason against it, ``rejected`` where there was too much to
    do, ``cancelled`` by its client, or ``failed``."""
    if not reason:
        return "completed"
    if reason in ("queue_full", "too_many_requests", "queue_timeout", "paused", "engine_429"):
        return "rejected"
    return "cancelled" if reason in ("client_left", "client_stalled") else "failed"
