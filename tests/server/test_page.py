"""The page in a real browser: play by hand, let an agent drive, reload, download."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.local import LocalServer
from tests.server.browser import all_drawn, opened, wait_until_idle, window

pytestmark = pytest.mark.slow


@pytest.fixture
def page(
    browser: Any, server: LocalServer, request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Any]:
    """Of a server that simulates."""
    with opened(browser, server.url, tmp_path / f"{request.node.name}.png") as shown:
        yield shown


def session(page: Any) -> str:
    return page.url.partition("#")[2]


def press(page: Any, button: str) -> None:
    page.click(f"#{button}")
    wait_until_idle(page)


def begin(page: Any, task: str, seed: int) -> None:
    page.select_option("#task", task)
    page.fill("#seed", str(seed))
    press(page, "reset")


def test_a_person_plays(page: Any, server: LocalServer) -> None:
    """Sliders become actions; charts, counters and the session agree."""
    begin(page, "adversarial_multitenant", 7)
    page.locator("#batch_cap").evaluate(
        "(slider) => { slider.value = 28; slider.dispatchEvent(new Event('input')); }"
    )
    page.check("#priority_routing")
    press(page, "step")
    page.fill("#windows", "5")
    press(page, "run")
    assert window(page) == 6
    seen = httpx.get(f"{server.url}/observation", params={"session_id": session(page)}).json()
    assert seen["info"]["step"] == 6
    assert (seen["info"]["action"]["batch_cap"], seen["info"]["action"]["priority_routing"]) == (
        128,
        1,
    )
    assert all_drawn(page)


def test_knobs_that_a_task_locks_do_not_move(page: Any) -> None:
    """As the task says."""
    begin(page, "static_workload", 1)
    assert page.is_enabled("#batch_cap")
    for knob in ("speculation_depth", "quantization_tier", "priority_routing"):
        assert page.is_disabled(f"#{knob}")


@pytest.mark.parametrize("agent", ["heuristic", "best_static", "ppo"])
def test_an_agent_drives_to_the_end_and_is_graded(
    page: Any, server: LocalServer, agent: str
) -> None:
    """The score on the page is the grader's, and the actions are those of the agent chosen."""
    begin(page, "static_workload", 3)
    page.select_option("#agent", agent)
    press(page, "drive")
    if "no best static setting" in page.inner_text("#status"):
        pytest.skip("the task has no anchors")
    assert window(page) == 200
    assert "The episode is over" in page.inner_text("#status")
    press(page, "grade")
    assert page.inner_text("#feedback")
    graded = float(page.inner_text("#graded"))
    assert abs(graded - float(page.inner_text("#so_far"))) < 0.002
    press(page, "step")
    assert window(page) == 200
    begun = httpx.post(
        f"{server.url}/reset", json={"task_id": "static_workload", "seed": 3, "split": "test"}
    ).json()
    body = {"session_id": begun["session_id"], "agent": agent, "windows": 200}
    played = httpx.post(f"{server.url}/agent", json=body, timeout=300.0).json()["results"]
    there = {"session_id": session(page)}
    shown = httpx.get(f"{server.url}/observation", params=there).json()
    assert shown["reward"] == played[-1]["reward"]
    assert shown["info"]["action"] == played[-1]["info"]["action"]


def test_stop_stops(page: Any) -> None:
    """In the middle of a long run."""
    begin(page, "static_workload", 3)
    page.fill("#windows", "200")
    page.click("#run")
    page.wait_for_function("Number(document.getElementById('window').textContent) >= 3")
    page.click("#stop")
    wait_until_idle(page)
    assert 3 <= window(page) < 200


def test_a_reloaded_page_goes_on(page: Any) -> None:
    """The address names the session; nothing is lost."""
    begin(page, "bursty_workload", 11)
    page.fill("#windows", "4")
    press(page, "run")
    before = (session(page), page.inner_text("#mean"))
    page.reload()
    wait_until_idle(page)
    assert window(page) == 4
    assert (session(page), page.inner_text("#mean")) == before
    assert page.input_value("#task") == "bursty_workload"
    press(page, "step")
    assert window(page) == 5


def test_the_log_can_be_downloaded_and_graded(page: Any, server: LocalServer) -> None:
    """What the file says is what the session is worth."""
    begin(page, "static_workload", 5)
    press(page, "step")
    with page.expect_download() as waiting:
        page.click("#download")
    log = json.loads(waiting.value.path().read_text())
    assert len(log["episode_log"]) == 2
    fields = {name: log[name] for name in ("task_id", "seed", "split", "episode_log")}
    answer = httpx.post(f"{server.url}/grader", json=fields, timeout=120.0)
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert answer.json()["verified"] is True


def test_an_error_is_said(page: Any) -> None:
    """The server's sentence, and the page works on."""
    page.fill("#seed", "-5")
    page.evaluate("document.getElementById('episode').noValidate = true")
    press(page, "reset")
    assert "seed is -5" in page.inner_text("#status")
    begin(page, "static_workload", 5)
    assert page.inner_text("#status") == ""
