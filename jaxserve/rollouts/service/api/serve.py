"""The service as a process."""

from __future__ import annotations

import logging
import socket
import sys
from dataclasses import replace

from jaxserve.rollouts.service.api.app import RolloutService
from jaxserve.rollouts.service.doors import SERVICE
from jaxserve.rollouts.service.settings import RolloutSettings, RolloutTokens, check_exposure
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.runtime.limited_http import HttpLimits, limited_protocol
from jaxserve.runtime.listening import CommandServer, address, listen

_LIMITS = HttpLimits(max_connections=1024, max_head_bytes=65_536, head_s=20.0)


class RolloutServer(CommandServer):
    """Serves until a signal; then streams end first."""

    def __init__(self, service: RolloutService) -> None:
        """Args: what is served."""
        self._service = service
        # uvloop cannot start a process in the group of another.
        super().__init__(service, loop="asyncio", http=limited_protocol(_LIMITS))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets running requests end."""
        self._service.stop()
        await super().shutdown(sockets)


def open_service(
    settings: RolloutSettings, tokens: RolloutTokens, *, own_token: bool = False
) -> tuple[CommandServer, socket.socket]:
    """A service that is ready to run, with its socket.

    Args:
      own_token: whether it makes a token for itself where it is given none.

    Raises:
      InputError: settings that cannot be, a port that is taken, or a folder that is in use.
    """
    settings.check()
    check_exposure(settings, tokens)
    listening = listen(settings.host, settings.port, "--port")
    try:
        if own_token and tokens.service is None:
            tokens = replace(tokens, service=SERVICE.keep(listening.getsockname()[1]))
        state = StateDatabase(settings.save_dir / "rollouts.sqlite3")
    except BaseException:
        listening.close()
        raise
    service = RolloutService(settings, tokens, state)
    return RolloutServer(service), listening


def run(settings: RolloutSettings) -> None:
    """Serves until it is told to stop; the next service goes on with what has not ended.

    Raises:
      InputError: settings that cannot be, or a port that is taken.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    tokens = RolloutTokens.from_environment()
    server, listening = open_service(settings, tokens, own_token=True)
    print(f"jaxserve: rollout service at {address(listening)}", file=sys.stderr, flush=True)
    if tokens.service is None:
        where = SERVICE.path(listening.getsockname()[1])
        print(f"jaxserve: it asks for the token in {where}", file=sys.stderr, flush=True)
    server.run(sockets=[listening])
