"""The tab Live in a real browser: a session on an engine, and logs of ``jaxserve operate``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import jax
import pytest

import jaxserve
from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.exporter import ControllerMetrics, exported
from jaxserve.seeds import episode_key
from server.local import LocalServer, free_port
from tests.live.deployment import TASK, setup_of
from tests.server.browser import all_drawn, opened, wait_until_idle, window

pytestmark = pytest.mark.slow

WINDOWS = 4
NOTHING = "\u2013"  # an en dash


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """As ``jaxserve operate`` writes it, with a torn line at its end."""
    (tmp_path / "mine.json").write_text(json.dumps(TASK))
    setup = setup_of(tmp_path / "mine.json")
    path, action = tmp_path / "operated.jsonl", jaxserve.make_action(batch_cap=16)
    state, _ = setup.env.reset(episode_key(1))
    step = jax.jit(setup.env.step)
    with EpisodeWriter(path, {"task": "mine", "agent": "ppo"}) as writer:
        for number in range(1, WINDOWS + 1):
            state, timestep = step(state, action)
            notes = notes_of(number)
            writer.window(timestep.observation, timestep.metrics, action, notes)
        writer.event(WINDOWS + 1, "blind", "the gateway cannot be reached")
    path.write_text(path.read_text() + '{"kind": "win')
    return path


def notes_of(number: int, **fields: Any) -> dict[str, Any]:
    """What ``jaxserve operate`` says of a window: a fifth of its requests cannot be judged."""
    expected = {name: {"good": 10.0} for name in ("in_force", "policy", "static")}
    notes = {"window": number, "seconds": 1.0, "unix_s": time.time(), "mode": "guarded"}
    notes |= {"reason": None, "in_control": "policy", "expected": expected}
    return notes | {"ended": 10, "unjudged": 2} | fields


def last_drawn(page: Any, chart: int) -> list[str]:
    """The values in a chart's legend, of its last window."""
    page.evaluate(
        """(number) => {
          const over = document.querySelectorAll('#charts .u-over')[number];
          const box = over.getBoundingClientRect();
          over.dispatchEvent(new MouseEvent('mousemove', {
            clientX: box.right - 1, clientY: box.top + 5, bubbles: true }));
        }""",
        chart,
    )
    return page.locator("#charts .chart").nth(chart).locator(".value").all_inner_texts()


def test_a_session_on_an_engine_is_followed(
    browser: Any, live: LocalServer, tmp_path: Path
) -> None:
    """The page begins with it, shows every window without being asked, and what is spent."""
    with opened(browser, live.url, tmp_path / "followed.png") as page:
        status = page.locator("#live_status")
        assert page.is_visible("#live") and page.is_hidden("#play")
        page.wait_for_function("document.getElementById('live_status').textContent")
        assert "no session plays; 0 of 1,000,000 tokens spent" in status.inner_text()
        with httpx.Client(base_url=live.url, timeout=600.0) as http:
            http.post("/reset", json={"task_id": "bursty_workload", "seed": 1})
            for number in range(1, WINDOWS):
                step = http.post("/step", json={"action": {"batch_cap": 16}}).json()
                shown = "(number) => document.getElementById('window').textContent == number"
                page.wait_for_function(shown, arg=number)
            spent = http.get("/runtime").json()["live"]["tokens_spent"]
        assert all_drawn(page)
        arrivals = float(last_drawn(page, 0)[0])
        assert arrivals == pytest.approx(step["observation"]["request_arrival_rate"], rel=1e-3)
        page.wait_for_function(
            "(spent) => document.getElementById('live_status').textContent.includes(spent)",
            arg=f"{spent:,} of 1,000,000",
        )
        assert "requests in flight" in status.inner_text()
        assert page.inner_text("#so_far") == NOTHING and page.is_hidden("#score")
        # Its classes have objectives, and nothing says what each of them got.
        head = page.locator("#classes tr").first.inner_text()
        assert head.split() == ["class", "worth", "TTFT", "SLO", "TPOT", "SLO"]
        assert page.locator("#charts .chart", has_text="by class").count() == 0
        assert page.inner_text("#about").startswith("Chat traffic with log-normal prompts")
        page.goto(f"{live.url}/dashboard/#{step['session_id']}")
        page.reload()
        page.wait_for_function("!document.getElementById('grade').disabled")
        page.click("#grade")
        page.wait_for_function("document.getElementById('feedback').textContent")
        assert "measured figures: mean reward " in page.inner_text("#feedback")
        assert page.is_hidden("#so_far") and page.is_hidden("#score")


def test_a_log_of_a_controller_is_opened(browser: Any, server: LocalServer, log: Path) -> None:
    """Of a task that the server does not know; the episode that is played comes back after it."""
    with opened(browser, server.url, log.with_suffix(".png")) as page:
        page.click("#step")
        page.wait_for_function("document.getElementById('window').textContent == 1")
        played = page.inner_text("#about")
        page.click("#tab_live")
        assert window(page) == 0 and page.inner_text("#about") == ""
        assert "Open a log" in page.inner_text("#nothing") and page.is_hidden("#charts")
        page.set_input_files("#log", log)
        page.wait_for_function("document.getElementById('live_status').textContent")
        assert page.inner_text("#about") == "mine, a task of your own."
        assert page.inner_text("#live_status") == f"operated.jsonl: {WINDOWS} windows of mine"
        assert window(page) == WINDOWS and page.inner_text("#mean") == NOTHING
        assert page.locator("#charts .chart", has_text="Reward").count() == 0
        assert page.is_hidden("#nothing") and page.is_visible("#controller")
        assert all_drawn(page)
        (log.parent / "notes.json").write_text("no log")
        page.set_input_files("#log", log.parent / "notes.json")
        page.wait_for_function("document.getElementById('live_status').className == 'error'")
        assert page.inner_text("#live_status") == "the file is no log of an episode"
        page.click("#follow")
        simulates = "This server simulates: open a log."
        page.wait_for_function(
            "(text) => document.getElementById('live_status').textContent == text", arg=simulates
        )
        page.click("#tab_play")
        assert window(page) == 1 and page.inner_text("#mean") != NOTHING
        assert page.inner_text("#about") == played and page.is_visible("#score")
        assert page.is_hidden("#controller")
        page.click("#tab_live")
        assert window(page) == WINDOWS


def test_a_downloaded_log_is_opened(browser: Any, server: LocalServer, tmp_path: Path) -> None:
    """What GET /episode_log gives, with its rewards."""
    with httpx.Client(base_url=server.url, timeout=600.0) as http:
        session = http.post("/reset", json={"task_id": 1, "seed": 3}).json()["session_id"]
        rewards = [
            http.post("/step", json={"session_id": session, "action": {}}).json()["reward"]
            for _ in range(3)
        ]
        text = http.get("/episode_log", params={"session_id": session}).text
    (tmp_path / "log.json").write_text(text)
    with opened(browser, server.url, tmp_path / "log.png") as page:
        page.click("#tab_live")
        page.set_input_files("#log", tmp_path / "log.json")
        page.wait_for_function("document.getElementById('window').textContent == 3")
        assert float(page.inner_text("#mean")) == pytest.approx(sum(rewards) / 3, abs=0.001)
        assert all_drawn(page)


def test_a_controller_is_followed(browser: Any, server: LocalServer, log: Path) -> None:
    """By its address: who is in control and why, what was measured and expected, and no score."""
    text = log.read_text().removesuffix('{"kind": "win')
    lines = text.splitlines(keepends=True)
    log.write_text(lines[0])
    metrics = ControllerMetrics("mine", "ppo", "guarded")
    with (
        exported("127.0.0.1", 0, metrics, log, None) as url,
        opened(browser, server.url, log.with_suffix(".png")) as page,
    ):
        follow(page, f"{url}/metrics")
        wait_for(page, "#live_status", "no window yet")
        log.write_text(text)
        gone = f"Window {WINDOWS + 1} was not measured, and static values are in force"
        wait_for(page, "#in_control", gone)
        wait_for(page, "#sums", f"Last {WINDOWS} windows: ")
        assert f"{8.0 * WINDOWS:.1f} under the knobs in force" in page.inner_text("#sums")
        assert "20 % of the requests cannot be judged" in page.inner_text("#sums")
        assert window(page) == WINDOWS and all_drawn(page)
        assert page.is_visible("#expected canvas") and page.is_hidden("#so_far")
        fallen = notes_of(WINDOWS + 2, reason="an engine restarted", in_control="best_static")
        last = json.loads(lines[WINDOWS])
        with log.open("a") as file:
            file.write(json.dumps(last | fallen) + "\n")
        said = "best static setting is in force. Mode guarded: an engine restarted"
        wait_for(page, "#in_control", said)
        wait_for(page, "#window", str(WINDOWS + 1))
        page.screenshot(path=log.with_name("followed.png"))
        page.click("#tab_play")
        assert page.is_hidden("#controller")


def test_a_controller_that_is_gone(browser: Any, server: LocalServer) -> None:
    """Is said to be."""
    page = browser.new_page()
    page.goto(server.url)
    wait_until_idle(page)
    follow(page, f"http://127.0.0.1:{free_port()}")
    wait_for(page, "#live_status", "answers this page; jaxserve operate needs --metrics-port")
    page.close()


def follow(page: Any, address: str) -> None:
    """Asks the page to follow a controller."""
    page.click("#tab_live")
    page.fill("#controller_address", address)
    page.click("#follow_controller button")


def wait_for(page: Any, place: str, said: str) -> None:
    """Returns when a place of the page says something."""
    page.wait_for_function(
        "([place, said]) => document.querySelector(place).textContent.includes(said)",
        arg=[place, said],
    )
