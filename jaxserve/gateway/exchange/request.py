"""A client's request: its body, and what the gateway needs to know of it."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive

from jaxserve.gateway.dialects.dialect import Dialect
from jaxserve.gateway.dialects.request_fields import json_object
from jaxserve.gateway.http import headers as names
from jaxserve.gateway.http.errors import Problem, client_left
from jaxserve.gateway.http.headers import RawHeaders

_PRIORITIES = 2**31
_WITH_USAGE = b',"stream_options":{"include_usage":true}}'


@dataclass(slots=True)
class Incoming:
    """One request, understood."""

    body: bytes
    """for the engine: the client's, byte for byte, but for an added wish for usage."""
    priority: int
    """lower is served first."""
    streamed: bool
    """whether the client asks for events."""
    parallel: bool
    """whether it asks for several outputs at a time."""
    drops_usage: bool
    """whether the wish for usage is the gateway's, so that its event is kept from the client."""


async def read_body(receive: Receive, headers: RawHeaders, most: int) -> bytes:
    """The whole body.

    Raises:
      Problem: it is larger than ``most`` bytes, or the client left.
    """
    announced = names.first(headers, b"content-length")
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


def understand(body: bytes, headers: RawHeaders, dialect: Dialect) -> Incoming:
    """What a body asks for.

    Raises:
      Problem: it is not a JSON object, or its priority is no whole number.
    """
    asked = json_object(body)
    streamed = asked.get("stream") is True
    drops_usage = streamed and dialect.asks_for_usage and "stream_options" not in asked
    if drops_usage:
        # It holds "stream" at least, so a comma is right.
        body = body.rstrip()[:-1] + _WITH_USAGE
    return Incoming(
        body=body,
        priority=_priority(asked, headers),
        streamed=streamed,
        parallel=_is_parallel(asked),
        drops_usage=drops_usage,
    )


def asked_pool(headers: RawHeaders, pools: Collection[str]) -> str | None:
    """The pool that the client names, None if it names none.

    Raises:
      Problem: there is no such pool.
    """
    asked = names.first(headers, names.POOL)
    if asked is None or asked in pools:
        return asked
    raise Problem(
        400, "unknown_pool", f"the header X-Pool names no pool; there are {', '.join(pools)}"
    )


def _priority(asked: dict[str, Any], headers: RawHeaders) -> int:
    """That of the first header that has one, else that of the body."""
    for name in (names.PRIORITY, names.VLLM_PRIORITY):
        text = names.first(headers, name)
        if text is not None:
            if not re.fullmatch(r"-?[0-9]{1,10}", text) or abs(int(text)) >= _PRIORITIES:
                raise Problem(
                    400, "bad_request", f"the header {name.decode()} must be a whole number"
                )
            return int(text)
    value = asked.get("priority")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _PRIORITIES:
        return value
    return 0  # what else it may be is for the engine to refuse


def _is_parallel(asked: dict[str, Any]) -> bool:
    count, prompts = asked.get("n"), asked.get("prompt")
    if isinstance(count, int) and count > 1:
        return True
    # A list of numbers is one prompt of token ids.
    return isinstance(prompts, list) and len(prompts) > 1 and not isinstance(prompts[0], int)


def _too_large(most: int) -> Problem:
    return Problem(
        413, "body_too_large", f"the request body is too large; at most {most} bytes are read"
    )
