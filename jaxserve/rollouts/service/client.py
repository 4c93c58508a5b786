"""Clients of the service: how requests show a token, and what the commands send."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx

from jaxserve.checks import address
from jaxserve.errors import InputError
from jaxserve.gateway.http.token_files import TokenFile, bearer
from jaxserve.rollouts.service.settings import TOKEN_VARIABLE, RolloutTokens

SERVICE = TokenFile("rollout", TOKEN_VARIABLE)
"""Token file of the service; with its token a client submits tasks, and so runs commands."""
_TIMEOUT_S = 60.0


class TokenAuth(httpx.Auth):
    """Adds the token of a local service to requests.

    A token that a service made for itself is read again for every request: the service may start
    after its client, and may make a new token when it restarts.
    """

    def __init__(self, token_file: TokenFile, url: str, token: str | None) -> None:
        """Args: the token file, the address, and the token; None reads the file."""
        self._token_file, self._url, self._token = token_file, url, token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the header."""
        token = self._token_file.own_token(self._url) if self._token is None else self._token
        request.headers.update(bearer(token))
        yield request


def service_client(url: str) -> httpx.Client:
    """An HTTP client of the service at an address, with its token.

    Raises:
      InputError: the variable of the token has other than printable ASCII characters.
    """
    auth = TokenAuth(SERVICE, url, RolloutTokens.from_environment().service)
    return httpx.Client(timeout=_TIMEOUT_S, auth=auth, trust_env=False)


def ask(url: str, method: str, path: str, body: Any = None) -> Any:
    """The JSON of the service's answer to one request.

    Args:
      url: address of the service.

    Raises:
      InputError: no service answers, or the service refuses; the error is its sentence.
    """
    address("--service", url)
    client = service_client(url)
    try:
        with client as http:
            answer = http.request(method, url.rstrip("/") + path, json=body)
            content = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise InputError(f"--service is {url}, which does not answer: {error}") from None
    if answer.status_code == 401:
        raise InputError(
            f"the service at {url} asks for its token; set {TOKEN_VARIABLE}, or ask as the user "
            "who runs it on this machine"
        )
    if answer.is_error:
        message = content.get("error", {}).get("message") if isinstance(content, dict) else None
        raise InputError(str(message or f"the service answers {answer.status_code}"))
    return content
