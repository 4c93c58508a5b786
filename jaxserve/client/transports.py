"""Transports to a server: a WebSocket in OpenEnv's protocol, or HTTP requests; and their errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage

_LARGEST_MESSAGE = 64 * 2**20
_AT_CAPACITY = "CAPACITY_REACHED"
_BUSY, _NO_SERVER = frozenset({429, 503}), frozenset({502, 503, 504})
"""Statuses of a server that refused without doing anything, and of a proxy without a server."""


class ServerError(RuntimeError):
    """The server refused a request; the message is its sentence."""

    def __init__(self, message: str, code: str | int) -> None:
        """Args: the sentence, and an HTTP status or OpenEnv's error code."""
        super().__init__(message)
        self.code = code


class ConnectionLost(ConnectionError):
    """The server cannot be reached, or did not come back within the time limit."""


class TryLater(ConnectionLost):
    """The server, or a proxy before it, does not serve this client at the moment."""

    def __init__(self, message: str, wait_s: float | None, undone: bool) -> None:
        """Args: the sentence, the wait that the server asks for, whether it surely did nothing."""
        super().__init__(message)
        self.wait_s, self.undone = wait_s, undone


class NoWebSocket(Exception):
    """No WebSocket is available: the server, or a proxy before it, speaks HTTP only, or the server
    is at capacity."""


class Transport(Protocol):
    """A connection to the server. Every method returns the body of an answer to reset or step.

    Raises:
      ServerError: the server refused. ConnectionLost: there was no answer; the request may or may
        not have been carried out.
    """

    async def reset(self, options: dict[str, Any]) -> dict[str, Any]: ...

    async def step(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]: ...

    async def resume(self, session_id: str) -> dict[str, Any]: ...

    async def drop(self) -> None: ...


class WebSocketTransport:
    """A WebSocket, connected at first use, and again by ``resume`` after ``drop``."""

    def __init__(self, url: str, headers: dict[str, str], timeout_s: float) -> None:
        """Args: the server's http URL, headers of the handshake, the time limit of an answer."""
        self._url = url.replace("http", "ws", 1) + "/ws"
        self._headers, self._timeout_s = headers, timeout_s
        self._socket: ClientConnection | None = None

    def wait_at_most(self, timeout_s: float) -> None:
        """Changes the time limit of an answer."""
        self._timeout_s = timeout_s

    async def reset(self, options: dict[str, Any]) -> dict[str, Any]:
        """Begins an episode."""
        return await self._exchange("reset", options)

    async def step(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Plays one window of the connection's session."""
        if self._socket is None:
            raise ConnectionLost("the connection is closed")
        del session_id
        return await self._exchange("step", action)

    async def resume(self, session_id: str) -> dict[str, Any]:
        """Takes over a session, which stays as it is."""
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
        """Aborts a connection on which an answer may still arrive."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.transport.abort()


class HttpTransport:
    """One HTTP request for each call."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        """Args: a client whose base URL is the server's."""
        self._http = http

    async def reset(self, options: dict[str, Any]) -> dict[str, Any]:
        """Begins an episode in a new session, which is nobody's default session."""
        headers = {"X-Default-Session": "no"}
        return await request(self._http, "POST", "/reset", json=options, headers=headers)

    async def step(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """Plays one window."""
        body = {"session_id": session_id, "action": action}
        return await request(self._http, "POST", "/step", json=body)

    async def resume(self, session_id: str) -> dict[str, Any]:
        """The session's last answer."""
        return await request(self._http, "GET", "/observation", params={"session_id": session_id})

    async def drop(self) -> None:
        """Does nothing: no connection is kept."""


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
    sentence = body.get("error") if isinstance(body, dict) and "detail" in body else None
    text = sentence or f"status {status}"
    wait_s = _retry_after_s(answer.headers.get("retry-after", ""))
    # The server's own errors have a sentence; waiting helps only where it asks for that.
    if status == 429 or (status in _NO_SERVER and (sentence is None or wait_s is not None)):
        raise TryLater(f"{http.base_url}: {text}", wait_s, undone=status in _BUSY)
    raise ServerError(text, status)


def _retry_after_s(text: str) -> float | None:
    """Seconds in the header ``Retry-After``; None for a date."""
    return float(text) if text.isdecimal() else None
