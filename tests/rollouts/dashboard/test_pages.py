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


def test_lists_and_charts(browser: Any, tmp_path: Path) -> None:
    """Lists are filtered and sorted, also while they are redrawn, and numbers stand under their
    heads; charts have what the service says; tasks and pages that are not there are named."""
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s") as service,
        RunningDashboard(service) as dashboard,
    ):
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(1000 * PATIENCE_S)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"{dashboard.opened_at}#/compare")
        page.wait_for_selector("text=Two tasks are needed; the service has 0.")
        for name, count in (("alpha", 3), ("beta", 1)):
            service.submit(task_id=name, agent=python(SPEAK), num_samples=count)
            service.result(name)
        service.submit(task_id="gamma", agent={"command": [sys.executable, "-c", "exit(3)"]})
        service.result("gamma")

        def names() -> list[str]:
            return page.locator("tbody tr td:first-child").all_inner_texts()

        page.goto(f"{dashboard.url}#/compare")
        page.reload()
        page.wait_for_selector("select[name=left]")
        chosen = [page.locator(f"select[name={one}]").input_value() for one in ("left", "right")]
        assert chosen == ["beta", "gamma"]
        page.goto(f"{dashboard.url}#/compare/alpha/nobody")
        page.wait_for_selector("[role=alert] >> text=There is no task nobody.")
        assert page.locator("select[name=left]").input_value() == "alpha"
        page.goto(f"{dashboard.url}#/task/nobody")
        page.wait_for_selector("[role=alert] >> text=there is no task 'nobody'")
        page.goto(f"{dashboard.url}#/nothing")
        page.wait_for_selector("[role=alert] >> text=There is no page nothing.")

        page.goto(f"{dashboard.url}#/tasks")
        page.wait_for_selector("text=gamma")
        assert names() == ["gamma", "beta", "alpha"]
        page.get_by_role("button", name="completions").click()
        assert names() == ["alpha", "beta", "gamma"]
        assert page.locator("th[aria-sort=descending]").inner_text().strip() == "completions"
        page.get_by_role("button", name="completions").click()
        assert names() == ["gamma", "beta", "alpha"]
        page.select_option("#tasks-choice", "with errors")
        assert names() == ["gamma"]
        page.select_option("#tasks-choice", "all tasks")
        for head, cell in zip(
            page.locator("thead th").all(),
            page.locator("tbody tr").first.locator("td").all(),
            strict=True,
        ):
            kinds = [one.evaluate("one => getComputedStyle(one).textAlign") for one in (head, cell)]
            assert kinds[0] == kinds[1]
        find = page.locator("#tasks-find")
        find.click()
        find.press_sequentially("alp")
        assert names() == ["alpha"]
        drawn = page.locator("#page").get_attribute("data-drawn")
        service.submit(task_id="alpine", agent=python(SPEAK))
        page.wait_for_selector("text=alpine")
        assert page.locator("#page").get_attribute("data-drawn") != drawn
        page.keyboard.type("i")
        assert find.input_value() == "alpi" and names() == ["alpine"]
        service.result("alpine")

        page.goto(f"{dashboard.url}#/task/alpha")
        page.wait_for_selector("h2 >> text=Task alpha")
        told = service.http.get("/history", params={"task": "alpha"}).json()
        for name in ("reward", "tokens_per_s", "running"):
            shown = page.locator(f"[data-chart={name}]").evaluate(
                "one => Array.from(one.chart.data[1])"
            )
            assert shown == told[name]
            canvas = page.locator(f"[data-chart={name}] canvas")
            assert canvas.get_attribute("role") == "img" and canvas.get_attribute("aria-label")
        page.emulate_media(color_scheme="dark")
        page.screenshot(path=tmp_path / "dark.png", full_page=True)
        assert problems == []
        page.close()
