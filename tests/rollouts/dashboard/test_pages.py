"""The pages in a real browser: live, and with a trace token by token."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S
from tests.rollouts.dashboard.dashboard_thread import RunningDashboard
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

pytestmark = pytest.mark.slow


def test_the_way_in(browser: Any, tmp_path: Path) -> None:
    """The printed address leads to its page, live and with no token in the address or for scripts;
    a browser that never opened it is told what to do."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s") as service,
        RunningDashboard(service) as dashboard,
    ):
        page = browser.new_context().new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        page.goto(f"{dashboard.url}/#/tasks")
        assert "open the address that" in page.inner_text("body")
        page.goto(f"{dashboard.opened_at}#/tasks")
        page.wait_for_selector("text=No task was submitted yet.")
        page.wait_for_selector("#status >> text=/^live$/")
        assert page.url == f"{dashboard.url}/#/tasks"
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["expires"]) == (True, "Strict", -1)
        assert page.evaluate("document.cookie") == ""
        page.goto("about:blank")
        page.goto(dashboard.url)
        page.wait_for_selector("[data-node=local]")
        page.context.close()


def test_pages(browser: Any, tmp_path: Path) -> None:
    """Nodes, a task and its sessions, a completion as a diff, two tasks beside each other, and a
    session that does not exist."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s") as service,
        RunningDashboard(service) as dashboard,
    ):
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(dashboard.opened_at)
        page.wait_for_selector("[data-node=local] .state.up")
        page.wait_for_selector("#status >> text=/^live$/")
        page.screenshot(path=tmp_path / "nodes.png", full_page=True)
        page.click("nav >> text=Tasks")
        page.wait_for_selector("text=No task was submitted yet.")
        service.submit(task_id="first", agent=python(SPEAK), num_samples=2)
        page.wait_for_selector("text=first")
        service.result("first")
        service.submit(task_id="second", agent={"command": [sys.executable, "-c", "exit(3)"]})
        service.result("second")
        page.wait_for_selector("td >> text=1 of 1")
        page.screenshot(path=tmp_path / "tasks.png", full_page=True)
        page.click("text=first")
        page.wait_for_selector("text=2 of 2 completed; mean reward 1")
        page.click("text=first.0")
        page.click("text=1 · chat · completed")
        page.click("text=received and sent, as a diff")
        page.wait_for_selector("pre ins >> text=return_token_ids")
        page.screenshot(path=tmp_path / "session.png", full_page=True)
        page.goto(f"{dashboard.url}#/compare/first/second")
        page.wait_for_selector("text=mean reward")
        (first, second) = service.http.get("/tasks").json()["tasks"]
        assert (first["mean_reward"], second["mean_reward"]) == (1, 0)
        assert (first["completions"] / 2, second["completions"]) == (1, 0)
        for name in ("mean reward", "mean completions"):
            row = page.locator("tr", has_text=name).inner_text().split()
            assert row[-3:] == ["1", "0", "-1"]
        page.screenshot(path=tmp_path / "compare.png", full_page=True)
        page.goto(f"{dashboard.url}#/session/nobody")
        page.wait_for_selector("[role=alert] >> text=there is no session 'nobody'")
        assert problems == []
        page.close()
