"""Connections to engines: requests, bodies, and the engines' own JSON routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
from yarl import URL

from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.headers import engine_headers

ANSWER_WITHIN_S = 10.0
"""Time for an answer on one of an engine's own routes, s."""
_MAX_ANSWER_BYTES = 4 * 2**20
"""Largest such answer."""
_KEEP_ALIVE_S = 2.0
"""Shorter than an engine's: uvicorn closes idle connections after 5 s, and a request must not be
written into a connection that the engine is closing."""


class NotConnected(Exception):
    """No connection was made, so no byte was sent: another engine may be tried."""


class EngineRefused(Exception):
    """An engine did not obey a command or answer a question; ``str()`` is the reason, one
    sentence."""


class Upstream:
    """HTTP client for all engines; one set of connections for the whole gateway."""

    def __init__(self, connect_s: float) -> None:
        """Args: time to connect to an engine, s."""
        self._connect_s = connect_s
        self._session: aiohttp.ClientSession | None = None

    def start(self) -> None:
        """Opens the client; to be called inside the event loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            # The gateway itself enforces all other limits of time.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def open(
        self,
        spec: EngineSpec,
        method: str,
        path: str,
        query: bytes,
        headers: list[tuple[str, str]],
        body: bytes | None,
    ) -> aiohttp.ClientResponse:
        """Sends a request and waits for the headers of the response; the caller closes it.

        Args:
          spec: the engine.
          method: HTTP method.
          path: path out of the gateway's own tables, never a client's text.
          query: query string.
          headers: headers for the engine.
          body: body; None sends none.

        Raises:
          NotConnected: no connection was made.
          RequestError: the connection broke, so the engine may have begun.
        """
        assert self._session is not None, "the client is not started"
        target = spec.url + path + (f"?{query.decode('latin-1')}" if query else "")
        try:
            return await self._session.request(
                method,
                URL(target, encoded=True),
                headers=headers,
                data=body,
                # A redirect would lead to a host that the operator did not configure.
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotConnected(type(error).__name__) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(spec.name, error) from None

    async def close(self) -> None:
        """Closes every connection."""
        if self._session is not None:
            await self._session.close()


async def chunks(response: aiohttp.ClientResponse, name: str) -> AsyncIterator[bytes]:
    """Body of a response as it arrives.

    Raises:
      RequestError: the connection broke.
    """
    content = response.content
    while True:
        try:
            chunk = await content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise broken(name, error) from None
        if not chunk:
            return
        yield chunk


async def join(arriving: AsyncIterator[bytes], name: str, most: int) -> bytes:
    """Whole body of a response.

    Args:
      arriving: chunks of the body.
      name: name of the engine.
      most: largest body, bytes.

    Raises:
      RequestError: the body is larger.
    """
    parts: list[bytes] = []
    length = 0
    async for chunk in arriving:
        length += len(chunk)
        if length > most:
            raise RequestError(502, "answer_too_large", f"the answer of engine {name} is too large")
        parts.append(chunk)
    return b"".join(parts)


def broken(name: str, error: Exception) -> RequestError:
    """Error for a broken connection; its sentence leaves out the engine's address."""
    garbage = isinstance(error, aiohttp.ClientResponseError)
    what = "answered with other than HTTP" if garbage else "broke the connection"
    reason = "engine_garbage" if garbage else "engine_broke"
    return RequestError(502, reason, f"engine {name} {what}")


async def ask(
    upstream: Upstream, spec: EngineSpec, method: str, path: str, content: Any = None
) -> Any:
    """Sends a JSON request to one of an engine's own routes.

    Raises:
      EngineRefused: the answer is late, an error, or not JSON.
    """
    status, text = await ask_text(upstream, spec, method, path, content)
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        answer = None
    if status == 404:
        raise EngineRefused(f"engine {spec.name} has no {path}")
    if status != 200 or answer is None:
        message = answer.get("error") if isinstance(answer, dict) else None
        reason = f": {message!s:.200}" if message else f" with status {status}"
        hint = "; control=VARIABLE of --engine names the variable with the token of its knobs"
        raise EngineRefused(
            f"engine {spec.name} refused{reason}{hint if status in (401, 403) else ''}"
        )
    return answer


async def ask_text(
    upstream: Upstream, spec: EngineSpec, method: str, path: str, content: Any = None
) -> tuple[int, bytes]:
    """Status and body of an engine's answer on one of its own routes.

    Args:
      upstream: connections.
      spec: the engine.
      method: HTTP method.
      path: path out of the gateway's own tables.
      content: JSON-able body; None sends none.

    Raises:
      EngineRefused: the answer is late, or the connection failed.
    """
    headers = engine_headers((), spec.control_key or spec.key, None)
    body = None
    if content is not None:
        body = orjson.dumps(content)
        headers.append(("content-type", "application/json"))
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            response = await upstream.open(spec, method, path, b"", headers, body)
            try:
                text = await join(chunks(response, spec.name), spec.name, _MAX_ANSWER_BYTES)
            finally:
                response.close()
    except TimeoutError:
        raise EngineRefused(
            f"engine {spec.name} did not answer within {ANSWER_WITHIN_S:g} s"
        ) from None
    except NotConnected:
        raise EngineRefused(f"engine {spec.name} cannot be reached") from None
    except RequestError as error:
        raise EngineRefused(str(error)) from None
    return response.status, text
