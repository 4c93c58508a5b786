"""Two ways to the same server: one WebSocket in OpenEnv's protocol, or one HTTP request a call."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

from jaxserve.client.errors import ConnectionLost, ServerError, TryLater

_LARGEST_MESSAGE = 64 * 2**20
_AT_CAPACITY = "CAPACITY_REACHED"
_BUSY, _NOBODY = frozenset({429, 503}), frozenset({502, 503, 504})
"""Statuses of refusals, after which nothing is done; and those of proxies that find no server."""


class NoWebSocket(Exception):
    """There is none to be had now: the server, or a proxy before it, speaks HTTP only, or all
    places are taken."""


class Transport(Protocol):
    """Every method returns the body of an answer to reset or step.

    Raises:
      ServerError: the server refused. ConnectionLost: there was no answer, and what was asked may
        or may not have been done.
    """

    async def reset(self, options: dict[str, Any]) -> dict[str, Any]: ...

    async def step(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]: ...

    async def resume(self, session_id: str) -> dict[str, Any]: ...

    async def drop(self) -> None: ...


class WebSocketTransport:
    """Connects when first used, and again after ``drop``; ``resume`` comes first then."""

    def __init__(self, url: str, headers: dict[str, str], timeout_s: float) -> None:
        """Args: the server's http URL, headers of the handshake, and how long to wait at most."""
        self._url = url.replace("http", "ws", 1) + "/ws"
        self._headers, self._timeout_s = headers, timeout_s
        self._socket: ClientConnection | None = None

    def wait_at_most(self, timeout_s: float) -> None:
        """Changes how long to wait."""
        self._timeout_s = timeout_s

    async def reset(self, options: dict[str, Any]) -> dict[str, Any]:
        """Begins an episode."""
        return await self._exchange("reset", options)

    async def step(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """One window of the session this connection plays."""
        if self._socket is None:
            raise ConnectionLost("the connection is closed")
        del session_id
        return await self._exchange("step", action)

    async def resume(self, session_id: str) -> dict[str, Any]:
        """Takes a session over; nothing in it changes."""
        return await self._exchange("reset", {"resume": session_id})

    async def drop(self) -> None:
        """Closes the connection, if there is one."""
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def _exchange(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._socket is None:
                    self._socket = await self._connect()
                await self._socket.send(json.dumps({"type": kind, "data": data}))
                reply = json.loads(await self._socket.recv())
        except (ConnectionClosed, OSError, TimeoutError) as error:
            await self._abandon()
            raise ConnectionLost(f"{self._url}: {str(error) or type(error).__name__}") from None
        if reply["type"] == "error":
            if reply["data"]["code"] == _AT_CAPACITY:
                await self._abandon()
                raise NoWebSocket(reply["data"]["message"])
            raise ServerError(reply["data"]["message"], reply["data"]["code"])
        return reply["data"]

    async def _connect(self) -> ClientConnection:
        try:
            return await connect(
                self._url,
                additional_headers=self._headers,
                max_size=_LARGEST_MESSAGE,
                compression=None,
                open_timeout=self._timeout_s,
            )
        except InvalidMessage as error:
            raise ConnectionLost(f"{self._url}: {error}") from None
        except InvalidHandshake as error:
            raise NoWebSocket(str(error)) from None

    async def _abandon(self) -> None:
        """Forgets a connection that an answer may still be under way on."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()


class HttpTransport:
    """Needs nothing kept open."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        """Args: a client whose base URL is the server's."""
        self._http = http

    async def reset(self, options: dict[str, Any]) -> dict[str, Any]:
        """Begins an episode in a new session."""
        return await request(self._http, "POST", "/reset", json=options)

    async def step(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """One window."""
        body = {"session_id": session_id, "action": action}
        return await request(self._http, "POST", "/step", json=body)

    async def resume(self, session_id: str) -> dict[str, Any]:
        """Where the session stands."""
        return await request(self._http, "GET", "/observation", params={"session_id": session_id})

    async def drop(self) -> None:
        """There is nothing to close."""


async def request(http: httpx.AsyncClient, method: str, path: str, **options: Any) -> Any:
    """The JSON of an answer.

    Raises:
      ServerError: a status of 400 or more. ConnectionLost: no answer. TryLater: too many requests,
        or a proxy that finds no server.
    """
    try:
        answer = await http.request(method, path, **options)
    except httpx.HTTPError as error:
        raise ConnectionLost(f"{http.base_url}: {str(error) or type(error).__name__}") from None
    try:
        body = answer.json()
    except ValueError:
        body = None
    status = answer.status_code
    if status < 400:
        return body
    said = body.get("error") if isinstance(body, dict) and "detail" in body else None
    text = said or f"status {status}"
    wait_s = _retry_after_s(answer.headers.get("retry-after", ""))
    # The server's own come with a sentence, and waiting helps only where it says so.
    if status == 429 or (status in _NOBODY and (said is None or wait_s is not None)):
        raise TryLater(f"{http.base_url}: {text}", wait_s, undone=status in _BUSY)
    raise ServerError(text, status)


def _retry_after_s(text: str) -> float | None:
    """Of the header; a date in it is left for the caller's own waiting."""
    return float(text) if text.isdecimal() else None
