"""The dashboard passes on what is to be seen, with the token, and nothing else."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from jaxserve.errors import InputError
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from jaxserve.rollouts.service.settings import RolloutTokens
from tests.gateway.running import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.rollouts.dashboard.running import RunningDashboard
from tests.rollouts.service.running import RunningService


def test_what_it_passes_on(tmp_path: Path) -> None:
    """Reading only, for this machine only; the token stays inside; pages run no other scripts."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s", RolloutTokens(service="TOKEN")) as service,
        RunningDashboard(service, "TOKEN") as dashboard,
        httpx.Client(base_url=dashboard.url) as http,
    ):
        assert http.get("/api/tasks").json() == {"tasks": []}
        assert http.get("/api/nodes").json()["nodes"][0]["id"] == "local"
        assert http.get("/api/sessions/none").status_code == 404
        for path in ("/api/health", "/api/rollout/task/x/cancel", "/api//nodes/local/drain"):
            assert http.get(path).json()["error"]["message"] == "there is no such page"
        for path in ("/api/rollout/task/submit", "/api/nodes/register"):
            assert http.post(path, json={}).status_code == 405
        assert http.get("/api/tasks", headers={"host": "evil.example"}).status_code == 403
        page = http.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert http.get("/shared/style.css").status_code == 200
        assert "TOKEN" not in page.text
    with pytest.raises(InputError, match=r"--host is 0\.0\.0\.0, which other machines reach"):
        DashboardSettings(host="0.0.0.0").check()
