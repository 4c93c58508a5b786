"""A dashboard in a thread of the tests' process."""

from __future__ import annotations

import threading
from typing import Any

from jaxserve.rollouts.dashboard.serve import open_dashboard
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from tests.gateway.stub_engine import PATIENCE_S, wait_until


class RunningDashboard:
    """``with RunningDashboard(service) as dashboard: dashboard.url``."""

    def __init__(self, service: Any, token: str | None = None) -> None:
        """Args: a running service, and its token."""
        settings = DashboardSettings(service=service.url, port=0)
        self.server, self._socket = open_dashboard(settings, token)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> RunningDashboard:
        self._thread.start()
        wait_until(lambda: self.server.started)
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
