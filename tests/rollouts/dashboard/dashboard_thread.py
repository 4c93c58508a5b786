"""A dashboard in a thread of the tests' process."""

from __future__ import annotations

from typing import Any

from jaxserve.rollouts.dashboard.app import open_dashboard
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from tests.server_thread import ServerThread


class RunningDashboard:
    """``with RunningDashboard(service) as dashboard: dashboard.url``."""

    def __init__(self, service: Any, token: str | None = None, own: str | None = None) -> None:
        """Args: a running service, its token, and the dashboard's own; None makes one."""
        settings = DashboardSettings(service=service.url, port=0)
        server, listening = open_dashboard(settings, token, own)
        self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self.opened_at = server.opened_at
        self._thread = ServerThread(server, [listening])

    def __enter__(self) -> RunningDashboard:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._thread.stop()
