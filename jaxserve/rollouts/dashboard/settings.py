"""Settings of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.runtime.hosts import is_loopback

TOKEN_VARIABLE = "JAXSERVE_DASHBOARD_TOKEN"


@dataclass(frozen=True)
class DashboardSettings:
    """Settings of the dashboard."""

    service: str = "http://127.0.0.1:9100"
    """Address of the rollout service."""
    host: str = "127.0.0.1"
    """Address of the pages, which only this machine may reach."""
    port: int = 9101
    """Port of the pages; 0 takes a free one."""

    def check(self) -> None:
        """Raises InputError for an invalid setting."""
        checks.address("--service", self.service)
        checks.whole("--port", self.port, 0, 65_535)
        if not is_loopback(self.host):
            raise InputError(
                f"--host is {self.host}, which other machines reach, and whoever sees the pages "
                "sees what agents said; leave it at 127.0.0.1"
            )
