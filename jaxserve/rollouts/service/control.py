"""The gateway's control door, as the service uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx

from jaxserve.errors import InputError
from jaxserve.gateway.sessions.records import CompletionRecord, decode

_TRIES = 6
_FIRST_WAIT_S = 0.1
_TIMEOUT_S = 60.0


class Control:
    """Sessions of a gateway."""

    def __init__(self, url: str, token: str | None) -> None:
        """Args: address of the control door, and its token."""
        self._url = url
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"), headers=headers, timeout=_TIMEOUT_S, trust_env=False
        )

    async def create(self, id: str, metadata: Mapping[str, Any]) -> str:
        """A new session's key. Its records are on the disk before the agent has their answers.

        Raises:
          InputError: the gateway refuses it, or does not answer.
        """
        body = {"id": id, "durable": True, "metadata": metadata}
        return (await self._ask("POST", "/sessions", json=body)).json()["key"]

    async def shut(self, id: str) -> None:
        """Refuses a session's key from now on; what was said stays. One that never was is shut."""
        answer = await self._ask("POST", f"/sessions/{id}/close", allowed=404)
        del answer

    async def records(self, id: str) -> list[CompletionRecord]:
        """All that was said.

        Raises:
          InputError: the gateway does not answer, or not with records.
        """
        answer = await self._ask("GET", f"/sessions/{id}/completions")
        try:
            return await asyncio.to_thread(_decoded, answer.content)
        except ValueError as error:
            raise InputError(f"the gateway's records of {id} cannot be read: {error}") from None

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _ask(
        self, method: str, path: str, allowed: int = 200, **options: Any
    ) -> httpx.Response:
        wait_s, last = _FIRST_WAIT_S, ""
        for _ in range(_TRIES):
            try:
                answer = await self._http.request(method, path, **options)
            except httpx.TransportError as error:
                last = str(error) or type(error).__name__
            else:
                if answer.is_success or answer.status_code == allowed:
                    return answer
                last = f"{answer.status_code} {answer.text:.200}"
                if answer.status_code < 500:
                    break
            await asyncio.sleep(wait_s)
            wait_s *= 2.0
        raise InputError(f"the gateway's control door at {self._url} does not serve: {last}")


def _decoded(content: bytes) -> list[CompletionRecord]:
    return [decode(line) for line in content.splitlines() if line]
