"""Errors in vLLM's form."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any


class VllmError(Exception):
    """An error response of vLLM; ``str()`` is its message."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        """Args: HTTP status, vLLM's error type, message, and the field with the wrong value."""
        super().__init__(message)
        self.status = status
        self._kind = kind
        self._param = param

    def body(self) -> dict[str, Any]:
        """JSON body of the response, or of the last event of a stream."""
        error = {"message": str(self), "type": self._kind, "param": self._param}
        return {"error": {**error, "code": self.status}}


def bad_request(message: str, param: str | None = None) -> VllmError:
    """Error 400: the request has a wrong value."""
    return VllmError(400, "BadRequestError", message, param)


def plain(status: int) -> VllmError:
    """An error whose message is the phrase of its status."""
    phrase = HTTPStatus(status).phrase
    return VllmError(status, phrase, phrase)


def engine_failed() -> VllmError:
    """Error 500: the engine's loop has ended by an exception."""
    return VllmError(500, "InternalServerError", "EngineCore encountered an issue; see the log")
