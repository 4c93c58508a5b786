"""Who may turn knobs: as the plug-in for vLLM has it."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Mapping

from jaxserve.errors import InputError

TOKEN_VARIABLE = "JAXSERVE_CONTROL_TOKEN"
MIN_TOKEN = 16
_INDIRECT = ("origin", "forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of browser pages and proxies, which do not say who asks."""


def control_token(variables: Mapping[str, str]) -> str | None:
    """The token of controllers, None where there is none.

    Raises:
      InputError: it is too short.
    """
    token = variables.get(TOKEN_VARIABLE)
    if token and len(token) < MIN_TOKEN:
        raise InputError(
            f"{TOKEN_VARIABLE} has {len(token)} characters; {MIN_TOKEN} or more are required"
        )
    return token or None


def refusal(
    token: str | None, client: str | None, headers: Mapping[str, str]
) -> tuple[int, str] | None:
    """Status and sentence for a request that may not, None for one that may.

    Args:
      token: what it must bear; without one only direct requests from this machine may.
      client: address from which it came.
      headers: its headers, by name in lower case.
    """
    if token is not None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        same = secrets.compare_digest(given.strip().encode(), token.encode())
        if same and scheme.lower() == "bearer":
            return None
        return 401, f"a bearer token is required: the one of {TOKEN_VARIABLE}"
    for name in _INDIRECT:
        if name in headers:
            return 403, (
                f"without {TOKEN_VARIABLE} only direct requests are allowed, but this one has the "
                f"header {name}"
            )
    if _is_here(client) and _is_here(_host(headers.get("host", ""))):
        return None
    return 403, f"without {TOKEN_VARIABLE} only requests from this machine are allowed"


def _host(header: str) -> str:
    """The name or address in a header ``Host``, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _is_here(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
