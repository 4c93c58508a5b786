"""Tokens of clients and of controllers."""

from __future__ import annotations

import secrets

from jaxserve.gateway import headers as names
from jaxserve.gateway.headers import RawHeaders


def shows(headers: RawHeaders, token: str | None) -> bool:
    """Whether a request shows a token: as ``Authorization: Bearer``, or as ``x-api-key``, which is
    what clients of the messages interface send. Where none is asked for, every request does."""
    if token is None:
        return True
    scheme, _, bearer = (names.first(headers, b"authorization") or "").partition(" ")
    given = bearer.strip() if scheme.lower() == "bearer" else names.first(headers, b"x-api-key")
    return given is not None and secrets.compare_digest(given.encode(), token.encode())
