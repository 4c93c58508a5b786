"""JSON bodies: of commands and responses on control routes, and of clients and engines."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.http.errors import RequestError

_MAX_COMMAND_BYTES = 16_384
_COMMAND_TIMEOUT_S = 60.0
_CLOSE = {"connection": "close"}
"""Header of a response after which the rest of the request stays unread."""


def plain_json(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A response with a JSON body."""
    return Response(orjson.dumps(content), status, headers, "application/json")


async def command_of(
    request: Request, longest: int = _MAX_COMMAND_BYTES, within_s: float = _COMMAND_TIMEOUT_S
) -> Any:
    """Reads the JSON body of a command.

    Args:
      request: a request of a control route.
      longest: largest body, bytes.
      within_s: time until the last byte, s.

    Raises:
      HTTPException: the body is too long or too slow.
      InputError: the body is not JSON.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                body += piece
                if len(body) > longest:
                    message = f"the command has more than {longest} bytes"
                    raise HTTPException(413, message, _CLOSE)
    except TimeoutError:
        message = f"the command did not come within {within_s:g} s"
        raise HTTPException(408, message, _CLOSE) from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InputError("the command is not JSON") from None


def number_in(
    request: Request, name: str, low: float, high: float, default: float | None = None
) -> float:
    """A number of the query string.

    Raises:
      InputError: the value is missing, not a number, or out of its range.
    """
    missing = checks.MISSING if default is None else default
    value: Any = request.query_params.get(name, missing)
    with contextlib.suppress(ValueError, TypeError):
        value = float(value)
    return checks.number(name, value, low, high)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a client's request.

    Raises:
      RequestError: the body is not a JSON object.
    """
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise RequestError(400, "bad_request", "the request body is not JSON") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "bad_request", "the request body is not a JSON object")
    return fields


def parse_object(text: bytes | str) -> dict[str, Any] | None:
    """The JSON object in a text; None for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def object_items(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; empty for anything but a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def whole_number(value: Any) -> int | None:
    """A whole number from 0 on; None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
