"""The gateway as a process: sockets, uvicorn, and an end without broken streams."""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace

from jaxserve.gateway.app.gateway import Gateway
from jaxserve.gateway.app.protocol import gateway_protocol
from jaxserve.gateway.engines.specs import parse_engines
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.gateway.settings import GatewaySettings, Tokens, check_exposure
from jaxserve.runtime.listening import CommandServer, address, listen, raise_file_limit

_AFTER_DRAIN_S = 10.0
"""After the last request was told to end, until the process ends in any case."""
_FILES_BESIDE = 256
"""Open files that are no connections."""


class GatewayServer(CommandServer):
    """Tells the gateway when it stops."""

    def __init__(self, gateway: Gateway, settings: GatewaySettings) -> None:
        """Args: what is served, and its limits."""
        self._gateway = gateway
        self._drain_s = settings.drain_s
        super().__init__(
            gateway,
            http=gateway_protocol(settings),
            timeout_keep_alive=max(1, round(settings.head_s)),
            timeout_graceful_shutdown=round(settings.drain_s + _AFTER_DRAIN_S),
        )

    @property
    def held(self) -> bool:
        """Whether control is switched off."""
        return self._gateway.switch.held

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets running requests end, or ends them when their time is up."""
        self._gateway.calls.stop(self._drain_s)
        await super().shutdown(sockets)


def open_gateway(
    settings: GatewaySettings, tokens: Tokens, *, own_token: bool = False
) -> tuple[GatewayServer, list[socket.socket]]:
    """A gateway that is ready to run, with its sockets: for clients, and for control.

    Args:
      own_token: whether a control door with sessions makes a token for itself where it is given
        none.

    Raises:
      InputError: settings that cannot be, or a port that is taken.
    """
    settings.check()
    specs = parse_engines(settings.engine)
    warning = check_exposure(settings, tokens)
    # Every request has two connections.
    raise_file_limit(settings.max_connections + settings.max_requests + _FILES_BESIDE)
    with ExitStack() as taken:
        clients = taken.enter_context(listen(settings.host, settings.port, "--port"))
        control = taken.enter_context(
            listen(settings.control_host, settings.control_port, "--control-port")
        )
        port = control.getsockname()[1]
        if own_token and tokens.control is None and settings.sessions is not None:
            tokens = replace(tokens, control=CONTROL.keep(port))
        gateway = Gateway(settings, tokens, specs, port)
        taken.pop_all()
    if warning is not None:
        print(f"jaxserve: {warning}", file=sys.stderr)
    return GatewayServer(gateway, settings), [clients, control]


def run(settings: GatewaySettings) -> None:
    """Serves until it is told to stop.

    Raises:
      InputError: settings that cannot be, or a port that is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    settings = settings.with_state(os.environ)
    tokens = Tokens.from_environment()
    server, (clients, control) = open_gateway(settings, tokens, own_token=True)
    print(
        f"jaxserve: gateway at {address(clients)}, metrics and control at {address(control)}",
        file=sys.stderr,
        flush=True,
    )
    if server.held:
        print(
            f"jaxserve: control is switched off, as {settings.state} says; "
            "`jaxserve switch on` ends that",
            file=sys.stderr,
        )
    if tokens.control is None and settings.sessions is not None:
        where = CONTROL.path(control.getsockname()[1])
        print(f"jaxserve: control asks for the token in {where}", file=sys.stderr, flush=True)
    # What is imported stays: looking through it for garbage would stop all streams for a while.
    gc.freeze()
    server.run(sockets=[clients, control])
