"""The gateway as a process: sockets, uvicorn, and a shutdown without broken streams."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace

from jaxserve.gateway.app.gateway import Gateway
from jaxserve.gateway.engines.specs import parse_engines
from jaxserve.gateway.exchange.response import CONNECTION
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.gateway.settings import AccessTokens, GatewaySettings, check_exposure
from jaxserve.runtime.limited_http import HttpLimits, limited_protocol
from jaxserve.runtime.listening import CommandServer, address, listen, raise_file_limit

_AFTER_DRAIN_S = 10.0
"""Time between the end of the last request and a forced end of the process, s."""
_OTHER_FILES = 256
"""Open files other than connections."""


class GatewayServer(CommandServer):
    """uvicorn server that announces its shutdown to the gateway."""

    def __init__(self, gateway: Gateway, settings: GatewaySettings) -> None:
        """Args: the application, and its limits."""
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
        """Whether the operator's hold is on."""
        return self._gateway.hold.held

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets running requests end, up to their limit of time."""
        self._gateway.in_flight.stop(self._drain_s)
        await super().shutdown(sockets)


def gateway_protocol(settings: GatewaySettings) -> type[asyncio.Protocol]:
    """Protocol class for uvicorn with the limits of the settings."""
    limits = HttpLimits(settings.max_connections, settings.max_head_bytes, settings.head_s)

    class GatewayProtocol(limited_protocol(limits)):
        """Protocol whose requests carry their transport."""

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {CONNECTION: self.transport}  # type: ignore[typeddict-item]

    return GatewayProtocol


def open_gateway(
    settings: GatewaySettings, tokens: AccessTokens, *, own_token: bool = False
) -> tuple[GatewayServer, list[socket.socket]]:
    """Opens the sockets of a gateway.

    Args:
      settings: settings of the command line.
      tokens: tokens of clients and controllers.
      own_token: whether a gateway with sessions and without a control token generates one.

    Returns:
      the server, and its sockets for clients and for control.

    Raises:
      InputError: a setting is wrong, or a port is taken.
    """
    settings.check()
    specs = parse_engines(settings.engine)
    warning = check_exposure(settings, tokens)
    # Every request has two connections, one to its client and one to its engine.
    raise_file_limit(settings.max_connections + settings.max_requests + _OTHER_FILES)
    with ExitStack() as sockets:
        clients = sockets.enter_context(listen(settings.host, settings.port, "--port"))
        control = sockets.enter_context(
            listen(settings.control_host, settings.control_port, "--control-port")
        )
        port = control.getsockname()[1]
        if own_token and tokens.control is None and settings.sessions is not None:
            tokens = replace(tokens, control=CONTROL.keep(port))
        gateway = Gateway(settings, tokens, specs, port)
        sockets.pop_all()
    if warning is not None:
        print(f"jaxserve: {warning}", file=sys.stderr)
    return GatewayServer(gateway, settings), [clients, control]


def run(settings: GatewaySettings) -> None:
    """Runs a gateway until a signal stops it.

    Raises:
      InputError: a setting is wrong, or a port is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    settings = settings.with_state(os.environ)
    tokens = AccessTokens.from_environment()
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
    # Freeze imported objects: a full collection would stall all streams.
    gc.freeze()
    server.run(sockets=[clients, control])
