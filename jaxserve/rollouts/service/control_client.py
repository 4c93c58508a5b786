"""Client of a gateway's control port: sessions, their keys and their records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.gateway.recording.records import CompletionRecord, PromptDecoder, decode
from jaxserve.rollouts.service.client import TokenAuth

_PATIENCE_S = 120.0
"""Time in which a killed gateway may come back."""
_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 5.0
_TIMEOUT_S = 60.0
_LOAD_S = 2.0
_PIECE_BYTES = 4 * 2**20
"""Size of a piece of records, decoded in one go."""
_AGAIN_S = 0.5


class _Silent(InputError):
    """No answer: the request may or may not have been carried out."""


class ControlClient:
    """Sessions of a gateway, over its control port."""

    def __init__(self, url: str, token: str | None) -> None:
        """Args: address of the control port, and its token; None reads the gateway's own file.

        Raises:
          InputError: the address is wrong.
        """
        self._url = checks.address("control", url)
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/"),
            auth=TokenAuth(CONTROL, url, token),
            timeout=_TIMEOUT_S,
            trust_env=False,
        )

    async def __aenter__(self) -> ControlClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def create(self, id: str, metadata: Mapping[str, Any]) -> str:
        """Makes a session and returns its key. Records reach the disk before their answers leave.

        Raises:
          InputError: the gateway refuses, or does not answer.
        """
        body = {"id": id, "durable": True, "metadata": metadata}
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return (await self._ask("POST", "/sessions", patience_s=0.0, json=body)).json()[
                    "key"
                ]
            except _Silent:
                if time.monotonic() > until:
                    raise
            await asyncio.sleep(_AGAIN_S)
            # The session may exist all the same, but its key is lost with the answer.
            found = await self._ask("GET", f"/sessions/{id}", allowed=404)
            if found.is_success and not any(found.json()["counts"].values()):
                await self._ask("DELETE", f"/sessions/{id}", allowed=404)

    async def shut(self, id: str, patience_s: float = _PATIENCE_S) -> bool:
        """Closes a session's key; records stay. False where the gateway has no such session."""
        return (await self._ask("POST", f"/sessions/{id}/close", 404, patience_s)).is_success

    async def records(self, id: str) -> list[CompletionRecord]:
        """All records of a session.

        Raises:
          InputError: the gateway does not answer, or the records are damaged.
        """
        found: list[CompletionRecord] = []

        async def read(answer: httpx.Response) -> None:
            try:
                found[:] = await _records(answer)
            except ValueError as error:
                raise InputError(f"the gateway's records of {id} cannot be read: {error}") from None

        await self._ask("GET", f"/sessions/{id}/completions", read=read)
        return found

    async def load(self) -> Any:
        """State of the gateway's engines, as JSON; None where the gateway does not answer."""
        try:
            answer = await self._http.get("/control/state", timeout=_LOAD_S)
            return answer.json()["pools"] if answer.is_success else None
        except (httpx.HTTPError, ValueError, KeyError):
            return None

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        allowed: int = 200,
        patience_s: float = _PATIENCE_S,
        read: Callable[[httpx.Response], Awaitable[object]] = httpx.Response.aread,
        **options: Any,
    ) -> httpx.Response:
        """An answer that has been read whole; retries one that breaks off."""
        wait_s, until = _FIRST_WAIT_S, time.monotonic() + patience_s
        while True:
            try:
                async with self._http.stream(method, path, **options) as answer:
                    if answer.is_success:
                        await read(answer)
                        return answer
                    await answer.aread()
            except httpx.RequestError as error:
                last = str(error) or type(error).__name__
            else:
                if answer.status_code == allowed:
                    return answer
                last = f"{answer.status_code} {answer.text:.200}"
                if answer.status_code < 500:
                    raise InputError(f"the gateway at {self._url} refuses: {last}")
            if time.monotonic() > until:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)
        raise _Silent(f"the gateway's control port at {self._url} does not serve: {last}")


async def _records(answer: httpx.Response) -> list[CompletionRecord]:
    """Records of an answer, decoded piece by piece: the text of a long session is several times as
    large.

    Raises:
      ValueError: a line is not a record.
    """
    found: list[CompletionRecord] = []
    prompts, rest = PromptDecoder(), b""

    def take(text: bytes) -> bytes:
        *lines, rest = text.split(b"\n")
        found.extend(decode(line, prompts) for line in lines)
        return rest

    async for piece in answer.aiter_bytes(_PIECE_BYTES):
        rest = await asyncio.to_thread(take, rest + piece)
    if rest:
        raise ValueError("the last line has no end")
    return found
