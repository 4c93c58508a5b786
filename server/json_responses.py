"""JSON responses; every exception as JSON with one sentence, and never more than that."""

from __future__ import annotations

import json
import logging
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from jaxserve.errors import InputError
from server.request_errors import RefusedRequest
from server.wire.error_sentences import sentence, unreadable

_LOG = logging.getLogger("jaxserve.server")


class OrjsonResponse(JSONResponse):
    """A JSON response, encoded by orjson."""

    def render(self, content: Any) -> bytes:
        """See ``to_json``."""
        return to_json(content)


def to_json(content: Any) -> bytes:
    """JSON by orjson, which would write NaN as null; no answer holds NaN.

    Integers beyond 64 bits, such as the id of a client's call, take the standard library.
    """
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        return json.dumps(content, allow_nan=False).encode()


def problem(status: int, text: str, **more: Any) -> OrjsonResponse:
    """The response of an error; OpenEnv and FastAPI clients read ``detail``."""
    return OrjsonResponse({"error": text, "detail": text} | more, status_code=status)


def answer_problems(app: FastAPI) -> None:
    """Adds handlers that turn exceptions into responses."""

    @app.exception_handler(InputError)
    async def wrong_input(request: Request, error: InputError) -> OrjsonResponse:
        del request
        return problem(422, str(error))

    @app.exception_handler(RefusedRequest)
    async def cannot(request: Request, error: RefusedRequest) -> OrjsonResponse:
        del request
        answer = problem(error.status, str(error))
        if error.retry_after_s is not None:
            answer.headers["Retry-After"] = str(error.retry_after_s)
        return answer

    @app.exception_handler(RequestValidationError)
    async def wrong_body(request: Request, error: RequestValidationError) -> OrjsonResponse:
        del request
        errors = error.errors()
        # The input may be NaN and contexts may be exceptions, so both are left out.
        plain = [{key: item[key] for key in ("type", "loc", "msg")} for item in errors]
        return problem(422, sentence(errors), detail=plain)

    @app.exception_handler(ValidationError)
    async def wrong_form(request: Request, error: ValidationError) -> OrjsonResponse:
        # OpenEnv's web interface does not catch invalid values of its forms.
        del request
        return problem(422, sentence(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> OrjsonResponse:
        answer = problem(error.status_code, _why(request, error))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> OrjsonResponse:
        _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem(500, "the server failed on this request; its log says why")


def _why(request: Request, error: HTTPException) -> str:
    """A sentence, also for errors that Starlette describes by two words."""
    path = request.url.path
    if error.status_code == 404 and error.detail == "Not Found":
        return f"{path!r:.80} is no route of this server; GET /docs lists them"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return f"{request.method} is not allowed for {path!r:.80}; allowed is {allowed}"
    if error.status_code == 400 and error.__cause__ is not None:
        return unreadable(error.__cause__)
    return str(error.detail)
