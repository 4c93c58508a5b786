"""The page in a real browser: play by hand, let an agent drive, reload, download."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.local import LocalServer
from server.sessions.episodes import MAX_SERVED_HORIZON
from tests.server.browser import all_drawn, opened, wait_until_idle, window

pytestmark = pytest.mark.slow
NOTHING = "\u2013"  # an en dash


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


def test_a_choice_takes_effect_or_waits_for_reset(page: Any) -> None:
    """At once where nothing has been played; else it is said, and can be taken back."""
    begin(page, "static_workload", 3)
    first = session(page)
    page.select_option("#task", "bursty_workload")
    page.wait_for_function("(id) => location.hash !== '#' + id", arg=first)
    wait_until_idle(page)
    assert page.inner_text("#about").startswith("Chat traffic") and page.is_hidden("#pending")
    assert page.is_enabled("#speculation_depth")
    press(page, "step")
    second = session(page)
    page.fill("#seed", "8")
    page.select_option("#task", "static_workload")
    wait_until_idle(page)
    said = page.inner_text("#pending_text")
    assert "Static workload, seed 8, test begins with Reset" in said
    assert "Until then Bursty workload, seed 3, goes on at window 1" in said
    press(page, "step")
    assert session(page) == second and window(page) == 2
    page.click("#keep")
    assert page.is_hidden("#pending") and page.input_value("#task") == "bursty_workload"
    page.select_option("#task", "static_workload")
    wait_until_idle(page)
    press(page, "reset")
    assert session(page) != second and page.is_hidden("#pending") and window(page) == 0
    assert page.inner_text("#about").startswith("Stable Poisson")


def test_a_grade_is_of_all_that_was_played(page: Any) -> None:
    """It goes with the next window; a grade of another episode never stays."""
    begin(page, "static_workload", 3)
    press(page, "step")
    press(page, "grade")
    assert page.inner_text("#graded") != NOTHING and page.inner_text("#feedback")
    press(page, "step")
    assert page.inner_text("#graded") == NOTHING and not page.inner_text("#feedback")
    press(page, "grade")
    press(page, "reset")
    assert page.inner_text("#graded") == NOTHING


def test_sliders_follow_the_agent(page: Any, server: LocalServer) -> None:
    """To its very values, which no slider has, and so they are played on."""
    begin(page, "bursty_workload", 3)
    page.select_option("#agent", "best_static")
    page.click("#drive")
    page.wait_for_function("Number(document.getElementById('window').textContent) >= 10")
    page.click("#stop")
    wait_until_idle(page)
    tasks = {one["task_id"]: one for one in httpx.get(f"{server.url}/tasks").json()["tasks"]}
    best = tasks["bursty_workload"]["mean_reward_anchors"]["best_static_action"]
    kv_budget = best["kv_budget_fraction"]
    assert int(page.input_value("#batch_cap_exact")) == best["batch_cap"] != 101
    assert float(page.input_value("#kv_budget_fraction_exact")) == 100 * kv_budget
    page.fill("#batch_cap_exact", "101")
    page.press("#batch_cap_exact", "Tab")
    press(page, "step")
    there = {"session_id": session(page)}
    action = httpx.get(f"{server.url}/observation", params=there).json()["info"]["action"]
    assert action["batch_cap"] == 101
    # Agents choose in float32.
    assert action["kv_budget_fraction"] == pytest.approx(kv_budget, rel=1e-6)
    page.reload()
    wait_until_idle(page)
    assert page.input_value("#batch_cap_exact") == "101"
    events = page.locator("#happened li").all_inner_texts()
    assert any(f"batch cap {best['batch_cap']} \u2192 101" in event for event in events)


def test_odd_numbers_are_answered(page: Any) -> None:
    """An empty seed is drawn and shown; windows that cannot be run are not."""
    page.fill("#seed", "")
    press(page, "reset")
    drawn = page.input_value("#seed")
    assert drawn and f"No seed was given; {drawn} was drawn." in page.inner_text("#status")
    assert page.get_attribute("#windows", "max") == str(MAX_SERVED_HORIZON)
    for odd in ("", "0", "2.5", "5000"):
        page.fill("#windows", odd)
        press(page, "run")
        said = f"windows to run is {odd or 'empty'}; it must be a whole number from 1 to "
        said += str(MAX_SERVED_HORIZON)
        assert page.inner_text("#status") == said
    assert window(page) == 0
    page.fill("#windows", "250")
    press(page, "run")
    assert window(page) == 200
    assert page.inner_text("#status").startswith("200 of 250 windows were played.")


def test_numbers_are_those_of_the_last_window(page: Any, server: LocalServer) -> None:
    """With those of the best static setting beside; and classes add up."""
    begin(page, "bursty_workload", 42)
    page.fill("#windows", "12")
    press(page, "run")
    page.wait_for_function("document.querySelector('#numbers').innerText.includes('best static')")
    there = {"session_id": session(page)}
    seen = httpx.get(f"{server.url}/observation", params=there).json()["observation"]
    beside = httpx.get(f"{server.url}/yardsticks", params=there).json()["agents"]["best_static"]
    # In one call: tiles are replaced with every event, and one out of the page has no lines.
    every = "[...document.querySelectorAll('#numbers .tile')].map((tile) => tile.innerText)"
    tiles = page.evaluate(every)
    assert [tile.split("\n")[0] for tile in tiles][:3] == ["TTFT p99", "Inside SLO", "Queue"]
    share = f"{100 * seen['slo_compliance_rate']:.1f}"
    assert share in tiles[1]
    assert f"best static {beside['observation']['queue_depth'][12]:.0f}" in tiles[2]
    states = page.locator("#numbers .tile").evaluate_all("(all) => all.map((t) => t.dataset.state)")
    assert states[0] == ("bad" if seen["p99_ttft_ms"] > 500 else "good")
    assert states[3] == "none"
    assert page.locator("#classes tr").count() == 4
    page.wait_for_function("document.getElementById('classes').innerText.includes('%')")
    # The 99th percentile of the inter-token latency comes with the classes, after the window.
    found = httpx.get(f"{server.url}/classes", params=there, timeout=300.0).json()["classes"]
    (itl_ms,) = {round(of, 3) for one in found if (of := one["itl_p99_ms"][-1]) is not None}
    big = "document.querySelectorAll('#numbers .tile .big')[3].textContent.replaceAll(',', '')"
    page.wait_for_function(f"(ms) => Math.abs(parseFloat({big}) / ms - 1) < 0.01", arg=itl_ms)
    told = page.evaluate(big).split()[0]
    chart = page.locator("#charts .chart", has_text="Inter-token latency").inner_text()
    assert re.search(r"p99\s+" + re.escape(told), chart.replace(",", "")), chart
    assert any("a burst" in event for event in page.locator("#happened li").all_inner_texts())


def test_the_cursor_moves_by_keys(page: Any) -> None:
    """All charts show the values of one window."""
    begin(page, "static_workload", 3)
    page.fill("#windows", "5")
    press(page, "run")
    page.focus("#charts")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#cursor") == "window 3"
    label = page.locator("#charts canvas").nth(1).get_attribute("aria-label")
    assert label is not None and label.startswith("Time to first token, ms; window (1 s each) 3: ")


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
    answer = httpx.post(f"{server.url}/grader", json=fields, timeout=300.0)
    assert answer.status_code in (200, 422)
    if answer.status_code == 200:
        assert answer.json()["verified"] is True


def test_an_error_is_said(page: Any) -> None:
    """The server's sentence, and the page works on."""
    page.fill("#seed", "-5")
    press(page, "reset")
    assert "seed is -5; it must be a whole number from 0" in page.inner_text("#status")
    begin(page, "static_workload", 5)
    assert page.inner_text("#status") == ""
    for odd in ("9999", "", "2.5"):
        page.fill("#batch_cap_exact", odd)
        page.press("#batch_cap_exact", "Tab")
        press(page, "step")
        said = f"is {odd or 'empty'}; it must be a whole number from 1 to 512"
        assert said in page.inner_text("#status") and window(page) == 0
    page.fill("#batch_cap_exact", "64")
    press(page, "step")
    assert window(page) == 1


def test_two_play_one_episode(page: Any, server: LocalServer) -> None:
    """Windows that another played are neither overlooked nor mistaken for the page's own."""
    begin(page, "static_workload", 5)
    there = {"session_id": session(page)}
    httpx.post(f"{server.url}/step", json={"action": {}, **there}).raise_for_status()
    press(page, "step")
    assert window(page) == 1
    assert "The page shows the episode as it is now." in page.inner_text("#status")
    press(page, "step")
    assert window(page) == 2
    httpx.post(f"{server.url}/step", json={"action": {}, **there}).raise_for_status()
    press(page, "drive")
    assert window(page) == 13
    assert "window 4 came in place of 3" in page.inner_text("#status")


def test_a_session_is_lost_only_where_it_is_gone(page: Any) -> None:
    """The address keeps it while the server is busy; a session that is gone is said to be."""
    begin(page, "static_workload", 5)
    kept = session(page)
    page.route("**/episode_log*", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    page.reload()
    page.wait_for_function("document.getElementById('status').innerText === 'busy'")
    assert session(page) == kept
    page.unroute("**/episode_log*")
    page.reload()
    wait_until_idle(page)
    assert session(page) == kept
    page.evaluate("location.hash = 'nobody'")
    page.reload()
    page.wait_for_function("location.hash !== '#nobody'")
    wait_until_idle(page)
    assert "nobody" in page.inner_text("#status")
