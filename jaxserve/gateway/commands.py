"""JSON in and out of the control door."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from jaxserve.errors import InputError

_LONGEST_COMMAND = 16_384


def plain_json(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


async def command_of(request: Request, longest: int = _LONGEST_COMMAND) -> Any:
    """The JSON that a command brings, of at most ``longest`` bytes.

    Raises:
      HTTPException: it is too long.
      InputError: it is no JSON.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > longest:
            raise HTTPException(413, f"the command has more than {longest} bytes")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InputError("the command is not JSON") from None


def number_in(
    request: Request, name: str, low: float, high: float, default: float | None = None
) -> float:
    """A number of the query.

    Raises:
      InputError: it is none, or out of its range.
    """
    text = request.query_params.get(name)
    try:
        value = default if text is None and default is not None else float(text or "")
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"{name} is {text!r}; it must be a number from {low:g} to {high:g}")
    return value
