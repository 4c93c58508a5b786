"""Tokens of clients and of controllers, and the keys of sessions."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from urllib.parse import parse_qs

from jaxserve.gateway import headers as names
from jaxserve.gateway.headers import RawHeaders


def shows(headers: RawHeaders, token: str | None) -> bool:
    """Whether a request shows a token: as ``Authorization: Bearer``, or as ``x-api-key``, which is
    what clients of the messages interface send. Where none is asked for, every request does."""
    if token is None:
        return True
    bearer = _bearer(headers)
    given = names.first(headers, b"x-api-key") if bearer is None else bearer
    return given is not None and secrets.compare_digest(given.encode(), token.encode())


def keys(headers: RawHeaders, query: bytes = b"") -> Iterator[str]:
    """Every key that a request shows, in the headers of OpenAI's, Anthropic's and Google's
    clients, or as ``?key=``, which Google's REST interface takes."""
    for key in (
        _bearer(headers),
        names.first(headers, b"x-api-key"),
        names.first(headers, b"x-goog-api-key"),
        *parse_qs(query.decode("latin-1")).get("key", ()),
    ):
        if key:
            yield key


def _bearer(headers: RawHeaders) -> str | None:
    scheme, _, bearer = (names.first(headers, b"authorization") or "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else None
