"""Who may turn knobs: as the plug-in for vLLM has it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from jaxserve.errors import InputError
from jaxserve.gateway.http.auth import remote_refusal

TOKEN_VARIABLE = "JAXSERVE_CONTROL_TOKEN"
MIN_TOKEN = 16


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
    why = remote_refusal(TOKEN_VARIABLE, client, headers)
    return None if why is None else (403, why)
