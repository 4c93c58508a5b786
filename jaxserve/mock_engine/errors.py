"""Errors in vLLM's form."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any


class VllmError(Exception):
    """A request that is not answered; ``str()`` is one sentence."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        """Args: HTTP status, vLLM's name of the kind, the sentence, and the field it is about."""
        super().__init__(message)
        self.status = status
        self._kind = kind
        self._param = param

    def body(self) -> dict[str, Any]:
        """As an answer, or as the last event of a stream."""
        error = {"message": str(self), "type": self._kind, "param": self._param}
        return {"error": {**error, "code": self.status}}


def bad_request(message: str, param: str | None = None) -> VllmError:
    """A request that asks for what cannot be."""
    return VllmError(400, "BadRequestError", message, param)


def plain(status: int) -> VllmError:
    """An error that its status says all of."""
    phrase = HTTPStatus(status).phrase
    return VllmError(status, phrase, phrase)


def engine_failed() -> VllmError:
    """The engine's loop has ended by a defect."""
    return VllmError(500, "InternalServerError", "EngineCore encountered an issue; see the log")
