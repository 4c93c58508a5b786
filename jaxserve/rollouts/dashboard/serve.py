"""The dashboard as a process."""

from __future__ import annotations

import os
import socket
import sys

from jaxserve import checks
from jaxserve.rollouts.dashboard.app import Dashboard
from jaxserve.rollouts.dashboard.door import DASHBOARD, PageAccess
from jaxserve.rollouts.dashboard.settings import TOKEN_VARIABLE, DashboardSettings
from jaxserve.rollouts.service.settings import RolloutTokens
from jaxserve.runtime.listening import CommandServer, address, listen


class DashboardServer(CommandServer):
    """Serves until a signal; then streams end first."""

    def __init__(self, dashboard: Dashboard, opened_at: str) -> None:
        """Args: what is served, and the address that opens it."""
        self._dashboard, self.opened_at = dashboard, opened_at
        super().__init__(dashboard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets running requests end."""
        await self._dashboard.stop()
        await super().shutdown(sockets)


def open_dashboard(
    settings: DashboardSettings, service_token: str | None, own_token: str | None = None
) -> tuple[DashboardServer, socket.socket]:
    """A dashboard that is ready to run, with its socket.

    Args:
      service_token: of the service; None shows what that made itself.
      own_token: that it asks for; None is one that it makes for itself.

    Raises:
      InputError: settings that cannot be, a port that is taken, or a token that cannot be kept.
    """
    settings.check()
    listening = listen(settings.host, settings.port, "--port")
    try:
        port = listening.getsockname()[1]
        entry = PageAccess(DASHBOARD.keep(port) if own_token is None else own_token, port)
    except BaseException:
        listening.close()
        raise
    opened_at = entry.address(address(listening))
    return DashboardServer(Dashboard(settings, service_token, entry), opened_at), listening


def run(settings: DashboardSettings) -> None:
    """Serves until it is told to stop.

    Raises:
      InputError: settings that cannot be, a port that is taken, or a token that cannot be kept.
    """
    own = checks.secret(os.environ, TOKEN_VARIABLE)
    server, listening = open_dashboard(settings, RolloutTokens.from_environment().service, own)
    # With its token, and nowhere else: who reads this is to open it.
    print(f"jaxserve: dashboard at {server.opened_at}", file=sys.stderr, flush=True)
    server.run(sockets=[listening])
