"""Access to the control routes: the bearer of a token, or, without a token, this machine alone."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Mapping

MIN_TOKEN = 16
NOT_DIRECT = ("origin", "forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of browser pages (the first) and of proxies, behind which the caller is unknown."""


def check_token(token: str | None) -> str | None:
    """Returns the token of ``JAXSERVE_CONTROL_TOKEN``; None if it is empty or missing.

    Raises:
      ValueError: the token is shorter than ``MIN_TOKEN`` characters.
    """
    if not token:
        return None
    if len(token) < MIN_TOKEN:
        raise ValueError(
            f"JAXSERVE_CONTROL_TOKEN has {len(token)} characters; {MIN_TOKEN} or more are required"
        )
    return token


def refusal(
    token: str | None, client_host: str | None, headers: Mapping[str, str]
) -> tuple[int, str] | None:
    """HTTP status and reason of a refused request; None if the request is allowed.

    Args:
      token: required bearer token; None allows direct requests from this machine.
      client_host: address of the client's socket.
      headers: request headers by lower-case name.
    """
    if token is not None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), token.encode())
        if scheme.lower() == "bearer" and right:
            return None
        return 401, "a bearer token is required: the one of JAXSERVE_CONTROL_TOKEN"
    indirect = [name for name in NOT_DIRECT if name in headers]
    if indirect:
        return 403, (
            f"without JAXSERVE_CONTROL_TOKEN only direct requests are allowed, but this one has "
            f"the header {indirect[0]}"
        )
    if not _is_loopback(client_host) or not _is_loopback(_host_name(headers.get("host", ""))):
        return 403, "without JAXSERVE_CONTROL_TOKEN only requests from this machine are allowed"
    return None


def _host_name(host: str) -> str:
    """The name or address in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
