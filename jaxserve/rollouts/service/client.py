"""What commands ask the service."""

from __future__ import annotations

from typing import Any

import httpx

from jaxserve.checks import address
from jaxserve.errors import InputError
from jaxserve.rollouts.service.doors import SERVICE, TokenAuth
from jaxserve.rollouts.service.settings import TOKEN_VARIABLE, RolloutTokens

_TIMEOUT_S = 60.0


def service_client(url: str) -> httpx.Client:
    """What asks the service at an address, and shows its token.

    Raises:
      InputError: the variable of the token has other than printable ASCII characters.
    """
    shown = TokenAuth(SERVICE, url, RolloutTokens.from_environment().service)
    return httpx.Client(timeout=_TIMEOUT_S, auth=shown, trust_env=False)


def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    """The service's answer.

    Args:
      url: of the service.

    Raises:
      InputError: there is no service, or it refuses; the error is its sentence.
    """
    address("--service", url)
    asking = service_client(url)
    try:
        with asking as http:
            answer = http.request(method, url.rstrip("/") + path, json=body)
            said = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise InputError(f"--service is {url}, which does not answer: {error}") from None
    if answer.status_code == 401:
        raise InputError(
            f"the service at {url} asks for its token; set {TOKEN_VARIABLE}, or ask as the user "
            "who runs it on this machine"
        )
    if answer.is_error:
        message = said.get("error", {}).get("message") if isinstance(said, dict) else None
        raise InputError(str(message or f"the service answers {answer.status_code}"))
    return said
