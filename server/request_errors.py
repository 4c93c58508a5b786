"""Exceptions of requests: each is one sentence for the client, and knows its HTTP status."""

from __future__ import annotations


class RefusedRequest(Exception):
    """A request cannot be answered; ``str()`` is one sentence for the client."""

    status = 400
    retry_after_s: int | None = None
    """seconds after which a retry may succeed; None if it would not."""


class UnknownSession(RefusedRequest):
    """The session does not exist, or has expired."""

    status = 404


class EpisodeConflict(RefusedRequest):
    """The session is not in a state in which the request makes sense."""

    status = 409


class StorageFailure(RefusedRequest):
    """The session log could not be written or read; nothing was acknowledged."""

    status = 507


class SpendingLimit(RefusedRequest):
    """A live window, or a use of the language model, would spend more tokens than are left; nothing
    was sent."""

    status = 402


class EngineFailure(RefusedRequest):
    """The real engine failed; no window was counted."""

    status = 502


class ModelFailure(RefusedRequest):
    """The language model gave no usable answer; no window was played."""

    status = 502


class Overloaded(RefusedRequest):
    """The server has too many computations under way; nothing was changed."""

    status = 503
    retry_after_s = 1


class OutOfTime(Overloaded):
    """A computation took too long, and may again."""

    retry_after_s = None


class ClientLeft(RefusedRequest):
    """The client closed its connection before the answer."""

    status = 499
