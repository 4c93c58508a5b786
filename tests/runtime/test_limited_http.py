"""Limits of connections; the gateway's tests hold the others."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from jaxserve.runtime.limited_http import HttpLimits, limited_protocol
from jaxserve.runtime.listening import listen


async def _app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204})
    await send({"type": "http.response.body"})


def test_one_address_leaves_places_to_others() -> None:
    """And has its own again when its connections end."""

    async def play() -> None:
        protocol = limited_protocol(HttpLimits(4, 4096, 5.0, max_per_address=2))
        server = uvicorn.Server(uvicorn.Config(_app, http=protocol, lifespan="off"))
        with listen("127.0.0.1", 0, "port") as socket:
            serving = asyncio.create_task(server.serve([socket]))
            while not server.started:
                await asyncio.sleep(0.01)

            async def ask(address: str) -> tuple[bytes, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection(
                    *socket.getsockname(), local_addr=(address, 0)
                )
                writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
                return (await reader.readline())[9:12], writer

            asked = [await ask(f"127.0.0.{host}") for host in (1, 1, 1, 2)]
            assert [status for status, _ in asked] == [b"204", b"204", b"503", b"204"]
            for _, writer in asked:
                writer.close()
            async with asyncio.timeout(20):
                while (await ask("127.0.0.1"))[0] != b"204":
                    await asyncio.sleep(0.05)
            server.should_exit = True
            await serving

    asyncio.run(play())
