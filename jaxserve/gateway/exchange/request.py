"""A client's request: its body, priority and pool."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import Receive

from jaxserve.gateway.dialects.dialect import Dialect
from jaxserve.gateway.engines.admission import Pool
from jaxserve.gateway.http.errors import RequestError, client_left
from jaxserve.gateway.http.headers import POOL, PRIORITY, VLLM_PRIORITY, RawHeaders, first_value
from jaxserve.gateway.http.json_http import json_object

_PRIORITIES = 2**31
_USAGE = b',"stream_options":{"include_usage":true}}'


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A client's request, parsed once."""

    body: bytes
    """body, byte for byte."""
    fields: dict[str, Any]
    """body, parsed."""
    priority: int
    """priority; the lowest number is served first."""
    streamed: bool
    """whether the client asks for a stream."""
    parallel: bool
    """whether the client asks for several outputs."""


async def read_body(receive: Receive, headers: RawHeaders, most: int) -> bytes:
    """Reads a whole body.

    Args:
      receive: messages of the ASGI server.
      headers: headers of the request.
      most: largest body, bytes.

    Raises:
      RequestError: the body is larger, or the client left.
    """
    announced = first_value(headers, b"content-length")
    if announced is not None and announced.isdecimal() and int(announced) > most:
        raise _too_large(most)
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise client_left()
        part = message.get("body", b"")
        length += len(part)
        if length > most:
            raise _too_large(most)
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse_request(body: bytes, headers: RawHeaders) -> ParsedRequest:
    """Parses a body, with the priority in headers or body.

    Raises:
      RequestError: the body is not a JSON object, or a header's priority is not a whole number.
    """
    fields = json_object(body)
    return ParsedRequest(
        body=body,
        fields=fields,
        priority=_priority(fields, headers),
        streamed=fields.get("stream") is True,
        parallel=_is_parallel(fields),
    )


def with_usage(request: ParsedRequest, dialect: Dialect) -> tuple[bytes, bool]:
    """Body for an engine, and whether the gateway added a wish for usage.

    The wish is added to streams of dialects that report usage only on request; its event is then
    kept from the client.
    """
    if not request.streamed or not dialect.asks_for_usage:
        return request.body, False
    if "stream_options" not in request.fields:
        # The object has at least the field ``stream``, so a comma is right.
        return request.body.rstrip()[:-1] + _USAGE, True
    if request.fields["stream_options"] in (None, {}):  # says nothing either
        return orjson.dumps(request.fields | {"stream_options": {"include_usage": True}}), True
    return request.body, False


def requested_pool(headers: RawHeaders, pools: Mapping[str, Pool]) -> Pool:
    """The pool in the header ``X-Pool``, else the default one.

    Raises:
      RequestError: the pool is unknown.
    """
    name = first_value(headers, POOL)
    if name is None:
        return next(pool for pool in pools.values() if pool.default)
    if name in pools:
        return pools[name]
    raise RequestError(
        400, "unknown_pool", f"the header X-Pool names no pool; there are {', '.join(pools)}"
    )


def _priority(fields: dict[str, Any], headers: RawHeaders) -> int:
    """Priority in the first header that has one, else in the body."""
    for name in (PRIORITY, VLLM_PRIORITY):
        text = first_value(headers, name)
        if text is not None:
            if not re.fullmatch(r"-?[0-9]{1,10}", text) or abs(int(text)) >= _PRIORITIES:
                raise RequestError(
                    400, "bad_request", f"the header {name.decode()} must be a whole number"
                )
            return int(text)
    value = fields.get("priority")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _PRIORITIES:
        return value
    return 0  # the engine refuses other values


def _is_parallel(fields: dict[str, Any]) -> bool:
    count, prompts = fields.get("n"), fields.get("prompt")
    if isinstance(count, int) and count > 1:
        return True
    # A list of numbers is one prompt of token ids.
    return isinstance(prompts, list) and len(prompts) > 1 and not isinstance(prompts[0], int)


def _too_large(most: int) -> RequestError:
    return RequestError(
        413, "body_too_large", f"the request body is too large; at most {most} bytes are read"
    )
