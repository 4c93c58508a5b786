"""The dashboard as a process."""

from __future__ import annotations

import socket
import sys

from jaxserve.rollouts.dashboard.app import Dashboard
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from jaxserve.rollouts.service.settings import RolloutTokens
from jaxserve.runtime.listening import CommandServer, address, listen


class DashboardServer(CommandServer):
    """Serves until a signal; then streams end first."""

    def __init__(self, dashboard: Dashboard) -> None:
        """Args: what is served."""
        self._dashboard = dashboard
        super().__init__(dashboard)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets running requests end."""
        await self._dashboard.stop()
        await super().shutdown(sockets)


def open_dashboard(
    settings: DashboardSettings, token: str | None
) -> tuple[CommandServer, socket.socket]:
    """A dashboard that is ready to run, with its socket.

    Raises:
      InputError: settings that cannot be, or a port that is taken.
    """
    settings.check()
    listening = listen(settings.host, settings.port, "--port")
    return DashboardServer(Dashboard(settings, token)), listening


def run(settings: DashboardSettings) -> None:
    """Serves until it is told to stop.

    Raises:
      InputError: settings that cannot be, or a port that is taken.
    """
    server, listening = open_dashboard(settings, RolloutTokens.from_environment().service)
    print(f"jaxserve: dashboard at {address(listening)}", file=sys.stderr, flush=True)
    server.run(sockets=[listening])
