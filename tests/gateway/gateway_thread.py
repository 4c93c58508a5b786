"""A gateway that runs in a thread of the tests' process."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from typing import Any

import httpx

from jaxserve.gateway.app.serve import open_gateway
from jaxserve.gateway.settings import AccessTokens, GatewaySettings
from tests.gateway.stub_engine import StubEngine
from tests.patience import PATIENCE_S, wait_until
from tests.server_thread import ServerThread


class Leaver:
    """A client that sends a request and does not wait for the answer."""

    def __init__(self, port: int, body: Any, path: str = "/v1/chat/completions") -> None:
        """Sends it."""
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(content)}\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.socket.sendall(head.encode() + content)

    def leave(self) -> None:
        """Closes the connection."""
        self.socket.close()


class RunningGateway:
    """``with RunningGateway(engines) as gateway: gateway.post(...)``."""

    def __init__(
        self,
        engines: Sequence[StubEngine | str],
        options: str = "",
        tokens: AccessTokens | None = None,
        **settings: Any,
    ) -> None:
        """Args:
        engines: stubs, or whole ``--engine`` arguments.
        options: of every stub, such as ``,cap=4``.
        tokens: what clients and controllers must show.
        settings: other than the defaults.
        """
        arguments = tuple(
            one if isinstance(one, str) else f"vllm={one.url}{options}" for one in engines
        )
        chosen = {"port": 0, "control_port": 0, "drain_s": 0.0, **settings}
        self.server, self._sockets = open_gateway(
            GatewaySettings(engine=arguments, **chosen), tokens or AccessTokens()
        )
        self.app = self.server._gateway
        self.port, self.control_port = (one.getsockname()[1] for one in self._sockets)
        control_host = self._sockets[1].getsockname()[0]
        self.url = f"http://127.0.0.1:{self.port}"
        self.control_url = f"http://{control_host}:{self.control_port}"
        self._thread = ServerThread(self.server, self._sockets)
        limits = httpx.Limits(max_connections=None)
        # Plain HTTP: without verify=False each client would load all of the system's certificates.
        plain: dict[str, Any] = {"timeout": PATIENCE_S, "verify": False}
        self.http = httpx.Client(base_url=self.url, limits=limits, **plain)
        self.control = httpx.Client(base_url=self.control_url, **plain)

    def __enter__(self) -> RunningGateway:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.close()
        self.control.close()
        self.stop()

    def stop(self) -> None:
        """Ends it as a signal would."""
        self._thread.stop()

    def post(
        self, body: Any = None, path: str = "/v1/chat/completions", **options: Any
    ) -> httpx.Response:
        """One request that is read to its end."""
        return self.http.post(path, json={"model": "stub"} | (body or {}), **options)

    def records(self, count: int) -> list[dict[str, Any]]:
        """The requests that ended; waits until there are so many."""
        wait_until(lambda: len(self.app.ledger.records.ring) >= count, f"record {count}")
        return self.control.get("/control/records", params={"last": 100_000}).json()["records"]

    def wait_for_queue(self, waiting: int) -> None:
        """Returns when so many requests wait for a place."""
        pools = self.app.pools.values()
        wait_until(lambda: sum(pool.waiting for pool in pools) == waiting, f"{waiting} waiting")

    def connections(self) -> list[Any]:
        """Those of clients."""
        found = tuple(self.server.server_state.connections)
        return [one for one in found if one.server and one.server[1] == self.port]

    def shrink_send_buffers(self) -> None:
        """Of connections that are made from now on."""
        self._sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    def state(self) -> dict[str, Any]:
        """What is so at this moment."""
        return self.control.get("/control/state").json()
