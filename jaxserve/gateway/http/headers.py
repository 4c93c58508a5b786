"""Headers of HTTP: the gateway's own, and the ones that pass between client and engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Headers of ASGI: names in lower case, and values."""

PRIORITY = b"x-priority"
VLLM_PRIORITY = b"x-vllm-priority"
CLASS = b"x-class"
POOL = b"x-pool"
REQUEST_ID = b"x-gateway-request-id"

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110, section 7.6.1."""

_OWN_TO_A_REQUEST = frozenset(
    (
        b"host",
        b"content-length",
        b"accept-encoding",
        b"expect",
        b"authorization",
        b"x-api-key",
        b"x-goog-api-key",
        b"api-key",
        b"cookie",
        b"forwarded",
        PRIORITY,
        CLASS,
        POOL,
    )
)
"""Request headers that the gateway sets itself, or that are between client and gateway: keys of
clients never reach an engine."""

_OWN_TO_AN_ANSWER = frozenset(
    (
        b"content-length",
        b"date",
        b"server",
        b"set-cookie",
        b"www-authenticate",
        b"alt-svc",
        REQUEST_ID,
    )
)
"""Response headers that the gateway or its HTTP server sets itself."""


def first_value(headers: RawHeaders, name: bytes) -> str | None:
    """The first value of a header, by its name in lower case."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1").strip()
    return None


def engine_headers(
    headers: RawHeaders, key: str | None, priority: int | None
) -> list[tuple[str, str]]:
    """Headers of the request to an engine.

    Args:
      headers: headers of the client's request, names in lower case.
      key: the engine's bearer key, from the operator's configuration.
      priority: value of the header ``x-vllm-priority``; None sends no such header.
    """
    dropped = _OWN_TO_A_REQUEST | ({VLLM_PRIORITY} if priority is not None else set())
    passed = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in _end_to_end(headers, dropped)
        if not name.startswith(b"x-forwarded-")
    ]
    # Compressed events could not be read while they pass.
    passed.append(("accept-encoding", "identity"))
    if key is not None:
        passed.append(("authorization", f"Bearer {key}"))
    if priority is not None:
        passed.append((VLLM_PRIORITY.decode(), str(priority)))
    return passed


def client_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Headers of the response to the client, without the ones that the gateway adds."""
    return _end_to_end([(name.lower(), value) for name, value in headers], _OWN_TO_AN_ANSWER)


def headers_size(headers: RawHeaders) -> int:
    """Size of all headers, bytes."""
    return sum(len(name) + len(value) + 4 for name, value in headers)


def _end_to_end(headers: RawHeaders, dropped: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Headers without the hop-by-hop ones, which the header ``Connection`` can add to."""
    named = {
        part.strip().lower()
        for name, value in headers
        if name == b"connection"
        for part in value.split(b",")
    }
    gone = _HOP_BY_HOP.union(dropped, named)
    return [(name, value) for name, value in headers if name not in gone]
