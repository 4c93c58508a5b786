"""Limits of connections; the gateway's tests hold the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

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


@pytest.mark.parametrize(
    ("version", "body"), [("1.0", b"onetwo"), ("1.1", b"3\r\none\r\n3\r\ntwo")]
)
def test_old_clients_get_no_chunks(version: str, body: bytes) -> None:
    """A stream to HTTP/1.0 is plain, part by part, and ends with the connection."""
    goes_on = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        await goes_on.wait()
        await send({"type": "http.response.body", "body": b"two"})

    async def play() -> None:
        protocol = limited_protocol(HttpLimits(4, 4096, 5.0))
        server = uvicorn.Server(uvicorn.Config(stream, http=protocol, lifespan="off"))
        with listen("127.0.0.1", 0, "port") as socket:
            serving = asyncio.create_task(server.serve([socket]))
            reader, writer = await asyncio.open_connection(*socket.getsockname())
            close = b"connection: close\r\n\r\n"
            writer.write(b"GET / HTTP/%b\r\nhost: localhost\r\n" % version.encode() + close)
            head = await reader.readuntil(b"\r\n\r\n")
            begun = await reader.readuntil(b"one")
            goes_on.set()
            rest = await reader.read()
            assert (b"chunked" in head) is (version == "1.1")
            assert (begun + rest).removesuffix(b"\r\n0\r\n\r\n") == body
            writer.close()
            server.should_exit = True
            await serving

    asyncio.run(play())


def test_a_client_of_ipv6_has_the_share_of_its_network() -> None:
    """It takes another of its addresses for each connection."""
    protocol = limited_protocol(HttpLimits(10, 4096, 5.0, max_per_address=2))

    class Socket:
        def __init__(self, address: str) -> None:
            self._address = address

        def getpeername(self) -> tuple[str, int]:
            return self._address, 1

        def getsockname(self) -> tuple[str, int]:
            return "2001:db8::80", 80

    class Transport(asyncio.Transport):
        def __init__(self, address: str) -> None:
            super().__init__({"socket": Socket(address)})
            self.written = b""

        def write(self, data: Any) -> None:
            self.written += data

        def is_closing(self) -> bool:
            return bool(self.written)

        def close(self) -> None:
            assert self.written

    async def play() -> None:
        config = uvicorn.Config(_app, http=protocol, lifespan="off")
        config.load()
        addresses = [f"2001:db8::{host}" for host in (1, 2, 3)] + ["2001:db8:0:1::1"]
        refused = []
        for address in addresses:
            transport = Transport(address)
            made = protocol(config=config, server_state=ServerState(), app_state={})
            made.connection_made(transport)
            refused.append(b"503" in transport.written)
        assert refused == [False, False, True, False]

    asyncio.run(play())
