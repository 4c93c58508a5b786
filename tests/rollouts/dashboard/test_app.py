"""The dashboard passes on what is to be seen, to who shows its token, and nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.http.token_files import bearer
from jaxserve.rollouts.dashboard.app import DASHBOARD
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from jaxserve.rollouts.service.settings import RolloutTokens
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S
from tests.rollouts.dashboard.dashboard_thread import RunningDashboard
from tests.rollouts.service.service_thread import RunningService


def test_what_it_passes_on(tmp_path: Path) -> None:
    """Reading only, for this machine only; the token stays inside; pages run no other scripts."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s", RolloutTokens(service="TOKEN")) as service,
        RunningDashboard(service, "TOKEN", "OWN") as dashboard,
        httpx.Client(base_url=dashboard.url, headers=bearer("OWN")) as http,
    ):
        assert http.get("/api/tasks").json() == {"tasks": []}
        assert http.get("/api/nodes").json()["nodes"][0]["id"] == "local"
        assert sum(http.get("/api/history").json()["ended"]) == 0
        assert http.get("/api/sessions/none").status_code == 404
        for path in ("/api/health", "/api/rollout/task/x/cancel", "/api//nodes/local/drain"):
            assert http.get(path).json()["error"]["message"] == "there is no such page"
        for path in ("/api/rollout/task/submit", "/api/nodes/register"):
            assert http.post(path, json={}).status_code == 405
        assert http.get("/api/tasks", headers={"host": "evil.example"}).status_code == 403
        page = http.get("/")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert http.get("/base.css").status_code == 200
        assert "TOKEN" not in page.text
    with pytest.raises(InputError, match=r"--host is 0\.0\.0\.0, which other machines reach"):
        DashboardSettings(host="0.0.0.0").check()


def test_it_asks_for_its_token(tmp_path: Path) -> None:
    """On every route but one, with a sentence that says what to do. The address with the token
    leads to the same page without it, and leaves a cookie that no script reads, no other site
    sends, and no other door takes."""
    given = "a&b=c;%20d/+#"
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s", RolloutTokens(service=given)) as service,
        RunningDashboard(service, given, given) as dashboard,
        httpx.Client(base_url=dashboard.url, timeout=PATIENCE_S) as http,
    ):
        port = dashboard.url.rpartition(":")[2]
        name = f"jaxserve-dashboard-{port}"
        answer = http.get("/tasks", params={"token": given, "a": "b c"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/tasks?a=b+c")
        cookie, *rest = answer.headers["set-cookie"].split("; ")
        assert sorted(rest) == ["HttpOnly", "Path=/", "SameSite=strict"]
        value = cookie.removeprefix(f"{name}=")
        assert given not in str(answer.headers) and len(value) >= 32
        http.cookies.clear()
        routes = ("/", "/app.js", "/base.css", "/api/tasks", "/api/sessions/x/completions")
        routes = (*routes, "/api/events/stream", "/api/no/such/route", "/no/such/page")
        wrong: list[dict[str, Any]] = [
            {},
            {"headers": bearer("wrong")},
            {"headers": bearer(value)},
            {"headers": {"cookie": f"{name}=wrong"}},
            {"headers": {"cookie": f"{name}={value[:-1]}"}},
            {"headers": {"cookie": f"jaxserve-dashboard-1={value}"}},
            {"params": {"token": "wrong"}},
            {"params": {"token": value}},
        ]
        for shown in wrong:
            for path in routes:
                answer = http.get(path, **shown)
                assert answer.status_code == 401 and "set-cookie" not in answer.headers
                assert "open the address that `jaxserve rollout dashboard` printed" in answer.text
            assert http.get("/health", **shown).status_code == 200
        said = http.get("/api/tasks").json()["error"]["message"]
        assert said.startswith("the dashboard asks for its token: ") and given not in said
        right: list[dict[str, str]] = [bearer(given), {"cookie": f"x=y; {name}={value}"}]
        for headers in right:
            assert http.get("/", headers=headers).status_code == 200
            assert http.get("/api/tasks", headers=headers).json() == {"tasks": []}
            with http.stream("GET", "/api/events/stream", headers=headers) as stream:
                assert next(stream.iter_text()) == ": connected\n\n"
        # What the cookie holds is no token, not even where both doors have the same one.
        assert service.http.get("/tasks", headers=bearer(given)).status_code == 200
        assert service.http.get("/tasks", headers=bearer(value)).status_code == 401
        # The address that it printed, as a browser goes through it.
        assert http.get(dashboard.opened_at, follow_redirects=True).status_code == 200
        assert http.get("/api/tasks").status_code == 200
        for path in ("//evil.example", "/%5Cevil.example", "///evil.example/.."):
            answer = http.get(f"{dashboard.url}{path}", params={"token": given})
            to = httpx.URL(dashboard.url).join(answer.headers["location"])
            assert to.host == "127.0.0.1" and "\\" not in answer.headers["location"]


def test_each_makes_its_own_token() -> None:
    """A token that is not given is made for the port, and opens this dashboard only."""
    service = SimpleNamespace(url="http://127.0.0.1:1")
    with RunningDashboard(service) as dashboard, RunningDashboard(service) as other:
        token, another = (DASHBOARD.own_token(one.url) for one in (dashboard, other))
        assert token is not None and another is not None and token != another
        assert httpx.get(f"{dashboard.url}/", headers=bearer(token)).status_code == 200
        assert httpx.get(f"{dashboard.url}/", headers=bearer(another)).status_code == 401
        assert dashboard.opened_at == f"{dashboard.url}/?token={token}"
