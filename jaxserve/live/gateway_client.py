"""Client of a gateway's control routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from jaxserve import checks


class GatewayError(Exception):
    """The gateway did not answer, or refused; ``str()`` is the reason."""


class LateAnswer(GatewayError):
    """The gateway's answer did not come in time."""


class GatewayClient:
    """``async with GatewayClient(url) as gateway``; every call ends within ``patience_s``."""

    def __init__(self, url: str, token: str | None = None, patience_s: float = 5.0) -> None:
        """Args: address of the control routes, their token, and the patience with an answer, s.

        Raises:
          InputError: the address is invalid.
        """
        self._url = checks.address("--gateway", url, "http://127.0.0.1:9001").rstrip("/")
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._patience_s = patience_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> GatewayClient:
        self._session = aiohttp.ClientSession(headers=self._headers, trust_env=False)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def window(self, since_s: float | None, slices: int) -> dict[str, Any]:
        """Aggregates of the time since ``until_s`` of an earlier answer; the first one, with None,
        only says what time it is."""
        since = "seconds=0.001" if since_s is None else f"since={since_s!r}"
        return await self._ask("GET", f"/control/window?{since}&slices={slices}")

    async def state(self) -> dict[str, Any]:
        """The present state, and the objectives of each class."""
        return await self._ask("GET", "/control/state")

    async def engines(self) -> Any:
        """The metrics of every engine."""
        return (await self._ask("GET", "/control/engines")).get("engines")

    async def serve_with(self, engines: Sequence[str]) -> dict[str, Any]:
        """Names the engines that get new requests; the others drain. Returns the state then."""
        return await self._ask("PUT", "/control/serving", {"engines": list(engines)})

    async def knobs(self) -> dict[str, Any]:
        """The knobs: offers, and values in force."""
        return await self._ask("GET", "/control/knobs")

    async def put(self, knobs: Mapping[str, float], lease_s: float) -> dict[str, Any]:
        """Turns knobs; returns the knobs then."""
        return await self._ask("PUT", "/control/knobs", {"lease_s": lease_s, "knobs": dict(knobs)})

    async def release(self) -> dict[str, Any]:
        """Ends the lease."""
        return await self._ask("DELETE", "/control/knobs")

    async def hold(self, held: bool) -> dict[str, Any]:
        """Holds control, or resumes it: on hold all commands are refused."""
        return await self._ask("PUT", "/control/hold", {"held": held})

    async def _ask(self, method: str, path: str, content: Any = None) -> dict[str, Any]:
        """Raises GatewayError."""
        assert self._session is not None
        try:
            async with (
                asyncio.timeout(self._patience_s),
                self._session.request(
                    method, self._url + path, json=content, allow_redirects=False
                ) as response,
            ):
                text = await response.text()
        except TimeoutError:
            raise LateAnswer(f"the gateway did not answer within {self._patience_s:g} s") from None
        except (aiohttp.ClientError, OSError, UnicodeDecodeError) as error:
            raise GatewayError(f"the gateway cannot be reached: {type(error).__name__}") from None
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise GatewayError("what answers is no gateway")
        if response.status != 200:
            raise GatewayError(
                f"the gateway refused: {answer.get('error', response.status)!s:.300}"
            )
        return answer
