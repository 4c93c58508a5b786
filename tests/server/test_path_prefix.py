"""A server at a path of a proxy, as Jupyter, an ingress or a company's proxy puts it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import Client
from openenv.core.generic_client import GenericEnvClient
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from jaxserve.client import ServeClient
from server.local import LocalServer
from tests.server.browser import opened, wait_until_idle, window
from tests.server_thread import FakeServer

_METHODS = ["GET", "HEAD", "POST"]
_OF_THE_CONNECTION = ("content-length", "content-encoding", "transfer-encoding", "connection")


class PrefixProxy(FakeServer):
    """A proxy that hands on what is below ``/lab/jax``, and answers 404 to all else."""

    def __init__(self, server: LocalServer, *, keeps_prefix: bool = False) -> None:
        """Args: the server behind it, and whether it is asked for whole paths."""
        self._server, self._before = server, "/lab/jax/" if keeps_prefix else "/"
        below = "/lab/jax/{path:path}"
        super().__init__(
            [Route(below, self._forward, methods=_METHODS), WebSocketRoute(below, self._tunnel)]
        )
        self.address = f"{self.url}/lab/jax"

    def _behind(self, path: str, query: str) -> str:
        return f"{self._server.url}{self._before}{path}" + (f"?{query}" if query else "")

    async def _forward(self, request: Request) -> Response:
        address = self._behind(request.path_params["path"], request.url.query)
        body, headers = await request.body(), request.headers.raw
        async with httpx.AsyncClient(timeout=600.0) as client:
            answer = await client.request(request.method, address, content=body, headers=headers)
        kept = {n: v for n, v in answer.headers.items() if n not in _OF_THE_CONNECTION}
        return Response(answer.content, answer.status_code, kept)

    async def _tunnel(self, socket: WebSocket) -> None:
        address = self._behind(socket.path_params["path"], socket.url.query)
        async with connect(address.replace("http", "ws", 1)) as behind:
            await socket.accept()

            async def up() -> None:
                while True:
                    await behind.send(await socket.receive_text())

            async def down() -> None:
                async for message in behind:
                    await socket.send_text(str(message))

            tasks = [asyncio.ensure_future(up()), asyncio.ensure_future(down())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                expected = (WebSocketDisconnect, ConnectionClosed, asyncio.CancelledError)
                assert ended is None or isinstance(ended, expected)


@pytest.fixture(scope="module")
def proxy(server: LocalServer) -> Iterator[PrefixProxy]:
    """A proxy before a server that has not been told of it."""
    with PrefixProxy(server) as started:
        yield started


def test_redirects_and_files_stay_below_the_path(proxy: PrefixProxy) -> None:
    """From each address that leads to the page."""
    for path in ("/", "/web", "/web/", "/demo", "/dashboard"):
        page = httpx.get(proxy.address + path, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, "/lab/jax/dashboard/"), path
    for file in ("app.js", "style.css", "base.css", "vendor/uPlot.min.css"):
        assert httpx.get(page.url.join(file)).status_code == 200


def test_clients_play_below_the_path(proxy: PrefixProxy) -> None:
    """Ours and OpenEnv's over WebSocket, and an MCP client; each is given the address with the
    path."""
    with ServeClient(proxy.address) as env:
        env.reset(task_id=1, seed=4)
        assert env.step({}).info["step"] == 1
        assert env.grade()["steps"] == 1
    with GenericEnvClient(base_url=proxy.address).sync() as generic:
        generic.reset(task_id=1, seed=4)
        assert generic.step({"batch_cap": 64}).observation["step_index"] == 1

    async def tools() -> set[str]:
        async with Client(f"{proxy.address}/mcp") as client:
            return {tool.name for tool in await client.list_tools()}

    assert "step" in asyncio.run(tools())


@pytest.mark.slow
def test_the_page_plays_below_the_path(browser: Any, proxy: PrefixProxy, tmp_path: Path) -> None:
    """Step, and the log for download, of the same session after a reload."""
    with opened(browser, f"{proxy.address}/", tmp_path / "below.png") as page:
        page.click("#step")
        wait_until_idle(page)
        assert window(page) == 1
        log = httpx.get(page.evaluate("document.getElementById('download').href"))
        assert len(log.json()["episode_log"]) == 2
        page.reload()
        wait_until_idle(page)
        assert window(page) == 1


@pytest.mark.slow
@pytest.mark.parametrize("keeps_prefix", [False, True])
def test_a_server_that_knows_its_path_names_it(
    start_server: Callable[..., LocalServer], keeps_prefix: bool
) -> None:
    """In its API's page and schema, whether the proxy removes the path or not; without the proxy it
    answers as ever."""
    server = start_server(JAXSERVE_ROOT_PATH="/lab/jax", JAXSERVE_TOKEN="secret")
    bearer = {"Authorization": "Bearer secret"}
    with PrefixProxy(server, keeps_prefix=keeps_prefix) as proxy:
        ask = httpx.Client(base_url=proxy.address, headers=bearer, follow_redirects=True)
        assert ask.get("/openapi.json").json()["servers"] == [{"url": "/lab/jax"}]
        assert "/lab/jax/openapi.json" in ask.get("/docs").text
        assert ask.get("/").url.path == "/lab/jax/dashboard/"
        assert httpx.get(f"{proxy.address}/tasks").status_code == 401
        assert httpx.get(f"{proxy.address}/health").status_code == 200
        with ServeClient(proxy.address, token="secret") as env:
            env.reset(task_id=1, seed=4)
            assert env.step({}).info["step"] == 1
    assert httpx.get(f"{server.url}/health").status_code == 200
    assert httpx.get(f"{server.url}/tasks", headers=bearer).status_code == 200
