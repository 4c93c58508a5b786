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
from tests.docs.snippets import run_code
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
    """All of one window, with those of the best static setting beside; each judged by its own."""
    begin(page, "bursty_workload", 42)
    page.fill("#windows", "12")
    press(page, "run")
    page.wait_for_function("document.querySelector('#numbers').innerText.includes('best static')")
    there = {"session_id": session(page)}
    last = httpx.get(f"{server.url}/observation", params=there).json()
    seen, figures = last["observation"], last["info"]["figures"]
    best = httpx.get(f"{server.url}/yardsticks", params=there).json()["agents"]["best_static"]
    log = httpx.get(f"{server.url}/episode_log", params=there).json()["episode_log"]
    # In one call: tiles are replaced with every event, and one out of the page has no lines.
    every = """[...document.querySelectorAll('#numbers .tile')].map((tile) =>
      [tile.querySelector('dt').firstChild.data, tile.innerText, tile.dataset.state])"""
    tiles = {label: (text, state) for label, text, state in page.evaluate(every)}
    mine, theirs = (
        sum(of["worth_good"] for of in lately) / sum(of["worth_ended"] for of in lately)
        for lately in (
            [entry["figures"] for entry in log[-10:]],
            [{name: column[n] for name, column in best["figures"].items()} for n in range(3, 13)],
        )
    )
    text, state = tiles["Inside SLOs, by worth"]
    assert f"{100 * mine:.1f} %" in text and f"best static {100 * theirs:.1f}" in text
    good = mine >= 0.99 or mine >= max(theirs - 0.005, 0.5)
    assert state == ("good" if good else "near" if mine >= 0.9 * theirs else "bad")
    text, state = tiles["TTFT p99"]
    assert f"{seen['p99_ttft_ms']:,.0f}"[:3] in text
    early = figures["ttft_met"] / figures["first_tokens"]
    assert f"{100 * early:.1f} % inside" in text.replace("100.0", "100") or early > 0.9995
    theirs = best["figures"]["ttft_met"][12] / best["figures"]["first_tokens"][12]
    good = early >= 0.99 or early >= max(theirs - 0.005, 0.5)
    assert state == ("good" if good else "near" if early >= 0.9 * theirs else "bad")
    assert f"{figures['p99_itl_ms']:.3g}" in tiles["ITL p99"][0].splitlines()
    assert tiles["Queue"][1] == tiles["ITL p99"][1] == "none"
    assert f"best static {best['observation']['queue_depth'][12]:.0f}" in tiles["Queue"][0]
    chart = page.locator("#charts .chart", has_text="Inter-token latency").inner_text()
    assert re.search(rf"p99\s+{figures['p99_itl_ms']:.3g}", chart), chart
    assert page.locator("#classes tr").count() == 4
    page.wait_for_function("document.getElementById('classes').innerText.includes('%')")
    assert any("a burst" in event for event in page.locator("#happened li").all_inner_texts())


def test_what_rests_on_no_request_is_not_shown(page: Any, server: LocalServer) -> None:
    """No share, latency or price of a billionth of a request, and nothing red."""
    begin(page, "azure_code", 42)
    press(page, "step")
    for _ in range(60):
        there = {"session_id": session(page)}
        last = httpx.get(f"{server.url}/observation", params=there).json()
        if {"p99_ttft_ms", "mean_itl_ms"} <= set(last["info"]["nothing_to_judge"]):
            break
        press(page, "step")
    assert last["info"]["figures"]["decoding"] < 0.5
    every = """[...document.querySelectorAll('#numbers .tile')].map((tile) => [
      tile.querySelector('dt').firstChild.data, tile.querySelector('.big').innerText,
      tile.dataset.state])"""
    tiles = {label: (big, state) for label, big, state in page.evaluate(every)}
    for label in ("TTFT p99", "ITL p99"):
        assert tiles[label][0].startswith(NOTHING) and tiles[label][1] == "none"
    assert "e-" not in page.inner_text("#numbers") and "million" not in page.inner_text("#numbers")
    assert page.evaluate(
        """() => [...document.querySelectorAll('.chart')].find(({ innerText }) =>
          innerText.startsWith('Time to first token')).chart.data.slice(-2)
          .every((line) => line.at(-1) === null)"""
    )


def test_the_cursor_moves_by_keys(page: Any) -> None:
    """All charts show the values of one window."""
    begin(page, "static_workload", 3)
    page.fill("#windows", "5")
    press(page, "run")
    page.focus("#charts")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#cursor") == "window 3, 00:00:03 after the reset"
    label = page.locator("#charts canvas").nth(1).get_attribute("aria-label")
    assert label is not None and label.startswith("Time to first token, ms; window 3: ")


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
    """Windows that another played are neither overlooked nor mistaken for the page's own; knobs
    that a person has set stay."""
    begin(page, "static_workload", 5)
    there = {"session_id": session(page)}
    httpx.post(f"{server.url}/step", json={"action": {}, **there}).raise_for_status()
    page.fill("#batch_cap_exact", "77")
    page.press("#batch_cap_exact", "Tab")
    press(page, "step")
    assert window(page) == 1
    assert "The page shows the episode as it is now." in page.inner_text("#status")
    assert page.input_value("#batch_cap_exact") == "77"
    press(page, "step")
    assert window(page) == 2
    httpx.post(f"{server.url}/step", json={"action": {}, **there}).raise_for_status()
    press(page, "drive")
    assert window(page) == 13
    assert "window 4 came in place of 3" in page.inner_text("#status")
    httpx.post(f"{server.url}/step", json={"action": {}, **there}).raise_for_status()
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_function("document.getElementById('window').innerText === '14'")
    assert "Others play this session" in page.inner_text("#status")
    page.route("**/observation*", lambda route: route.fulfill(status=503, json={"error": "busy"}))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_function("document.getElementById('as_of').innerText.startsWith('busy; what is')")


def test_a_session_is_lost_only_where_it_is_gone(page: Any, server: LocalServer) -> None:
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
    page.goto("about:blank")
    page.goto(f"{server.url}/dashboard/#nobody")
    page.wait_for_function("!['', '#nobody'].includes(location.hash)")
    wait_until_idle(page)
    assert "nobody" in page.inner_text("#status")


def test_the_address_names_what_is_shown(page: Any) -> None:
    """Back, forward and a pasted address open their session; an unknown one changes nothing."""
    begin(page, "static_workload", 5)
    first = session(page)
    press(page, "step")
    begin(page, "bursty_workload", 6)
    second = session(page)
    assert second != first
    page.go_back()
    page.wait_for_function("document.getElementById('window').innerText === '1'")
    wait_until_idle(page)
    assert session(page) == first and page.inner_text("#about").startswith("Stable Poisson")
    page.evaluate("(id) => (location.hash = id)", second)
    page.wait_for_function("document.getElementById('about').innerText.startsWith('Chat traffic')")
    wait_until_idle(page)
    page.evaluate("location.hash = 'nobody'")
    page.wait_for_function("document.getElementById('status').innerText.includes('nobody')")
    wait_until_idle(page)
    assert "The page shows the session as before." in page.inner_text("#status")
    assert session(page) == second and page.input_value("#seed") == "6"


def test_runs_are_compared(page: Any, server: LocalServer) -> None:
    """An agent plays the same traffic elsewhere; its run and a person's own earlier ones can be
    laid over the charts, and are still listed after a reload."""
    begin(page, "static_workload", 9)
    earlier = session(page)
    page.fill("#windows", "6")
    press(page, "run")
    press(page, "reset")
    press(page, "run")
    page.select_option("#agent", "default")
    press(page, "overlay")
    assert "in a session of its own" in page.inner_text("#status") and window(page) == 6
    rows = page.locator("#runs li").all_inner_texts()
    assert [row.count("seed 9") for row in rows[:3]] == [1, 1, 1] and "200 windows" in rows[0]
    page.check(f'#runs li:has(a[href="#{earlier}"]) input')
    drawn = """(name) => [...document.querySelectorAll('.chart')].find(({ innerText }) =>
      innerText.startsWith('Throughput')).chart.series.filter((one) => one.label === name).length"""
    for name in ("default output", "by hand output"):
        page.wait_for_function(f"(name) => ({drawn})(name) === 1", arg=name)
    assert "level with by hand" in page.inner_text("#standing")
    page.reload()
    wait_until_idle(page)
    assert page.locator("#runs li").count() >= 3
    begin(page, "bursty_workload", 9)
    assert page.is_disabled(f'#runs li:has(a[href="#{earlier}"]) input')


def test_one_goes_on_in_python(page: Any, server: LocalServer, tmp_path: Path) -> None:
    """And with curl: the page has the lines, with the session's id."""
    begin(page, "static_workload", 9)
    press(page, "step")
    for language, code in (("python", "#python"), ("sh", "#curl")):
        run_code(language, page.inner_text(code), tmp_path)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_function("document.getElementById('window').innerText === '3'")
