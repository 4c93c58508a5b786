"""JSON in and out of the control door."""

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

_LONGEST_COMMAND = 16_384
_WITHIN_S = 60.0
_LAST = {"connection": "close"}
"""Of an answer after which nobody reads the rest of the request."""


def plain_json(
    content: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


async def command_of(
    request: Request, longest: int = _LONGEST_COMMAND, within_s: float = _WITHIN_S
) -> Any:
    """The JSON that a command brings, of at most ``longest`` bytes, all of it within a time.

    Raises:
      HTTPException: it is too long, or too slow.
      InputError: it is no JSON.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in request.stream():
                body += piece
                if len(body) > longest:
                    said = f"the command has more than {longest} bytes"
                    raise HTTPException(413, said, _LAST)
    except TimeoutError:
        said = f"the command did not come within {within_s:g} s"
        raise HTTPException(408, said, _LAST) from None
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
    missing = checks.MISSING if default is None else default
    value: Any = request.query_params.get(name, missing)
    with contextlib.suppress(ValueError, TypeError):
        value = float(value)
    return checks.number(name, value, low, high)
