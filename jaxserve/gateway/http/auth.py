"""Tokens of clients and of controllers, the keys of sessions, and who may ask without any."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qs

from jaxserve.gateway.http import headers as names
from jaxserve.gateway.http.headers import RawHeaders
from jaxserve.runtime.hosts import is_local, is_loopback, named_host

_INDIRECT = ("origin", "forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of browser pages and proxies, which do not say who asks."""
_OTHER_SITES = frozenset(("cross-site", "same-site"))


def shows(headers: RawHeaders, token: str | None) -> bool:
    """Whether a request shows a token: as ``Authorization: Bearer``, or as ``x-api-key``, which is
    what clients of the messages interface send. Where none is asked for, every request does."""
    if token is None:
        return True
    bearer = _bearer(headers)
    given = names.first(headers, b"x-api-key") if bearer is None else bearer
    return given is not None and secrets.compare_digest(given.encode(), token.encode())


def not_from_here(variable: str, client: str | None, headers: Mapping[str, str]) -> str | None:
    """Why a request may turn no knobs where nothing is asked for, None if it may: only direct ones
    from this machine may.

    Args:
      variable: that would hold the token.
      client: address from which it came.
      headers: its headers, by name in lower case.
    """
    for name in _INDIRECT:
        if name in headers:
            return (
                f"without {variable} only direct requests are allowed, but this one has the "
                f"header {name}"
            )
    if is_loopback(client or "") and is_loopback(named_host(headers.get("host", ""))):
        return None
    return f"without {variable} only requests from this machine are allowed"


def of_a_page(variable: str, headers: Mapping[str, str], *, is_here: bool) -> str | None:
    """Why a request is taken for one of a page in somebody's browser, None if it is not. Any page
    may send plain requests anywhere, and its site may have its own name lead here.

    Args:
      variable: that would hold the token.
      headers: its headers, by name in lower case.
      is_here: whether only this machine reaches the door, which is then called by no other name.
    """
    host = named_host(headers.get("host", ""))
    if "origin" in headers:
        found = "the header origin"
    elif headers.get("sec-fetch-site") in _OTHER_SITES:
        found = "the header sec-fetch-site"
    elif is_here and not is_local(host):
        found = f"the host {host!r:.80}"
    else:
        return None
    return f"without {variable} no pages of browsers are served, but this request has {found}"


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
