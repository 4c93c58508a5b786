"""Tokens and session keys of requests, and the rules for requests without a token."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qs

from jaxserve.gateway.http.headers import RawHeaders, first_value
from jaxserve.runtime.hosts import is_local, is_loopback, named_host

_INDIRECT = ("origin", "forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of browser pages and proxies, which hide the client's address."""
_OTHER_SITES = frozenset(("cross-site", "same-site"))


def has_token(headers: RawHeaders, token: str | None) -> bool:
    """Whether a request carries a token; always true where no token is configured.

    The token stands in ``Authorization: Bearer`` or, as Anthropic's clients send it, in
    ``x-api-key``.
    """
    if token is None:
        return True
    bearer = _bearer(headers)
    given = first_value(headers, b"x-api-key") if bearer is None else bearer
    return given is not None and secrets.compare_digest(given.encode(), token.encode())


def remote_refusal(variable: str, client: str | None, headers: Mapping[str, str]) -> str | None:
    """Why a control request without a configured token is refused; None if it is allowed.

    Only direct requests from this machine are allowed.

    Args:
      variable: name of the environment variable for the token.
      client: address of the client.
      headers: headers of the request, names in lower case.
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


def browser_page_refusal(variable: str, headers: Mapping[str, str], *, is_here: bool) -> str | None:
    """Why a request counts as one of a page in a browser; None if it does not.

    Any page may send plain requests anywhere (CSRF), and its site may resolve its own name to this
    machine (DNS rebinding).

    Args:
      variable: name of the environment variable for the token.
      headers: headers of the request, names in lower case.
      is_here: whether the port listens on loopback only, so that no other host name is right.
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


def request_keys(headers: RawHeaders, query: bytes = b"") -> Iterator[str]:
    """Every key of a request: in the headers of OpenAI's, Anthropic's and Google's clients, or as
    ``?key=``, which Google's REST interface takes."""
    for key in (
        _bearer(headers),
        first_value(headers, b"x-api-key"),
        first_value(headers, b"x-goog-api-key"),
        *parse_qs(query.decode("latin-1")).get("key", ()),
    ):
        if key:
            yield key


def _bearer(headers: RawHeaders) -> str | None:
    scheme, _, bearer = (first_value(headers, b"authorization") or "").partition(" ")
    return bearer.strip() if scheme.lower() == "bearer" else None
