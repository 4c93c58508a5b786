"""The service's own door, and how requests show the token of a door."""

from __future__ import annotations

from collections.abc import Generator

import httpx

from jaxserve.gateway.http.token_files import TokenFile, bearer
from jaxserve.rollouts.service.settings import TOKEN_VARIABLE

SERVICE = TokenFile("rollout", TOKEN_VARIABLE)
"""Where tasks are submitted: who may, runs commands."""


class Shown(httpx.Auth):
    """Shows the token of a door.

    One that the door made for itself is looked up for every request: the door may begin later than
    who asks, and when it begins anew it may have lost its file.
    """

    def __init__(self, door: TokenFile, url: str, token: str | None) -> None:
        """Args: which one, its address, and a token that was given; None asks the door's file."""
        self._door, self._url, self._token = door, url, token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Adds the header."""
        token = self._door.own_token(self._url) if self._token is None else self._token
        request.headers.update(bearer(token))
        yield request
