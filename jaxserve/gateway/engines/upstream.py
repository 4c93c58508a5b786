"""Connections to engines."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.http.errors import Problem

_KEEP_ALIVE_S = 2.0
"""Shorter than that of engines, whose uvicorn closes idle connections after 5 s: a request is then
never written into a connection that the engine is closing."""


class NotBegun(Exception):
    """The engine cannot have begun: no connection to it was made, so no byte was sent."""


class Upstream:
    """The client side of the gateway."""

    def __init__(self, connect_s: float) -> None:
        """Must be made inside the event loop.

        Args: time to connect to an engine, s.
        """
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            # All other times are watched by the gateway itself.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
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
        """Sends a request; returns when the answer's headers are there. The caller closes it.

        Args:
          path: one of the gateway's own table, never a client's text.

        Raises:
          NotBegun: no connection was made; another engine may be tried.
          Problem: the connection was lost, so nobody knows what the engine did.
        """
        target = spec.url + path + (f"?{query.decode('latin-1')}" if query else "")
        try:
            return await self._session.request(
                method,
                URL(target, encoded=True),
                headers=headers,
                data=body,
                # An address that an engine answers with is not one that the operator named.
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotBegun(type(error).__name__) from None
        except (aiohttp.ClientError, OSError) as error:
            raise broken(spec.name, error) from None

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()


async def chunks(response: aiohttp.ClientResponse, name: str) -> AsyncIterator[bytes]:
    """The answer's body as it arrives.

    Raises:
      Problem: it broke off.
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
    """The whole body of an engine's answer.

    Raises:
      Problem: it has more than ``most`` bytes.
    """
    parts: list[bytes] = []
    length = 0
    async for chunk in arriving:
        length += len(chunk)
        if length > most:
            raise Problem(502, "answer_too_large", f"the answer of engine {name} is too large")
        parts.append(chunk)
    return b"".join(parts)


def broken(name: str, error: Exception) -> Problem:
    """The connection to an engine broke; its address is nobody's business."""
    garbage = isinstance(error, aiohttp.ClientResponseError)
    what = "answered with other than HTTP" if garbage else "broke the connection"
    return Problem(502, "engine_garbage" if garbage else "engine_broke", f"engine {name} {what}")
