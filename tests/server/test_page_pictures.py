"""Every state of the page in light, in dark and on a phone: pictures, and what can be checked.

``JAXSERVE_PICTURES`` names a folder in which the pictures stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.spaces import DEFAULT_ACTION
from server.local import LocalServer
from tests.server.browser import opened, wait_until_idle, window
from tests.server.operated_log import write_log
from tests.server.players.stub_model import Model

pytestmark = pytest.mark.deep

SCREENS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1440, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1440, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "dark phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}
NONE = {"cut": [], "nameless": [], "faint": []}
FAULTS = Path(__file__).with_name("legible.js").read_text()
FIND = """async (text) => {
  const found = await import(URL.createObjectURL(new Blob([text], { type: 'text/javascript' })));
  return { cut: found.cut(), nameless: found.nameless(), faint: found.faint() };
}"""


def fresh(page: Any) -> None:
    """As it opens."""


def of_many_classes(page: Any) -> None:
    """The task that fills the page most."""
    page.select_option("#task", "adversarial_multitenant")
    page.wait_for_function("document.getElementById('about').innerText.startsWith('Three')")
    wait_until_idle(page)


def played(page: Any) -> None:
    """By hand, then by an agent, through a burst and a change of tier."""
    of_many_classes(page)
    page.fill("#windows", "30")
    page.click("#run")
    wait_until_idle(page)
    page.click("#drive")
    page.wait_for_function("Number(document.getElementById('window').textContent) >= 90")
    page.click("#stop")
    wait_until_idle(page)
    page.wait_for_function("document.querySelector('#numbers').innerText.includes('best static')")


def driving(page: Any) -> None:
    """An agent in mid-drive: the answer with its next windows does not come."""
    of_many_classes(page)
    answered = iter(range(4))
    page.route(
        "**/agent", lambda route: None if next(answered, None) is None else route.continue_()
    )
    page.click("#drive")
    page.wait_for_function("document.getElementById('window').textContent === '40'")
    page.wait_for_function("document.querySelector('#numbers').innerText.includes('best static')")
    assert page.is_enabled("#stop") and page.is_disabled("#step")


def waiting(page: Any) -> None:
    """A choice that waits for Reset."""
    page.click("#step")
    wait_until_idle(page)
    page.select_option("#task", "azure_code")
    wait_until_idle(page)


def refused(page: Any) -> None:
    """An error."""
    page.fill("#windows", "2.5")
    page.click("#run")
    wait_until_idle(page)


def over(page: Any) -> None:
    """Played to the end and graded, with the explanations open."""
    page.select_option("#agent", "best_static")
    page.click("#drive")
    wait_until_idle(page)
    page.click("#grade")
    wait_until_idle(page)
    page.locator("summary", has_text="What these mean").click()


def nothing_live(page: Any) -> None:
    """The other tab, before anything is opened."""
    page.click("#tab_live")
    assert page.is_visible("#nothing") and page.is_hidden("#charts")


STATES: tuple[Callable[[Any], None], ...] = (
    fresh,
    played,
    driving,
    waiting,
    refused,
    over,
    nothing_live,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the pictures go."""
    return Path(os.environ.get("JAXSERVE_PICTURES", tmp_path))


def look(page: Any, name: str, folder: Path, frame: Any = None) -> None:
    """Takes a picture on every screen.

    Args:
      frame: what is checked, if that is not the whole page.

    Raises:
      AssertionError: something sticks out or is faint, or has no name.
    """
    for screen, settings in SCREENS.items():
        page.emulate_media(color_scheme=settings["color_scheme"])
        page.set_viewport_size(settings["viewport"])
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name} {screen}.png", full_page=True)
        assert (frame or page).evaluate(FIND, FAULTS) == NONE, screen


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_state_is_legible(
    browser: Any, server: LocalServer, folder: Path, tmp_path: Path, state: Callable[[Any], None]
) -> None:
    """Nothing sticks out, no text is faint, everything that takes the focus has a name."""
    with opened(browser, server.url, tmp_path / "last.png") as page:
        state(page)
        look(page, state.__name__, folder)


def test_a_drive_of_a_language_model_is_legible(
    browser: Any, modelled: LocalServer, model: Model, folder: Path, tmp_path: Path
) -> None:
    """With its reasons, long and short, and the sentence that its budget is spent."""
    short, long = "The queue is empty.", "The queue grows by 12 a second and TTFT is near its SLO: "
    decisions = (
        (long + "more sequences at once, and prefill apart from decode.", 96, 1, 0),
        (short, 96, 1, 0),
        (long + "INT8 weights leave room for a larger batch.", 192, 2, 1),
    )
    model.answers = [
        json.dumps(
            {
                "reason": reason,
                **DEFAULT_ACTION,
                "batch_cap": cap,
                "prefill_decode_split": split,
                "quantization_tier": tier,
            }
        )
        for reason, cap, split, tier in decisions
    ]
    with opened(browser, f"{modelled.url}/dashboard/", tmp_path / "last.png") as page:
        of_many_classes(page)
        page.select_option("#agent", "language_model")
        page.click("#drive")
        wait_until_idle(page)
        page.wait_for_function("document.getElementById('happened').innerText.includes('INT8')")
        page.wait_for_function("document.getElementById('classes').innerText.includes('%')")
        assert window(page) == 30 and short in page.inner_text("#happened")
        look(page, "reasons", folder)


def test_the_tab_of_openenv_is_legible(browser: Any, modelled: LocalServer, folder: Path) -> None:
    """The page as a frame in another's."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.set_default_timeout(120_000)
    page.goto(f"{modelled.url}/web")
    inside = page.wait_for_selector('iframe[title="jaxserve"]').content_frame()
    inside.wait_for_selector("#numbers .tile")
    wait_until_idle(inside)
    look(page, "openenv", folder, inside)
    page.close()


def test_a_followed_session_is_legible(
    browser: Any, live: LocalServer, folder: Path, tmp_path: Path
) -> None:
    """The other tab of a server that plays on an engine, with windows of a task that is known."""
    with opened(browser, live.url, tmp_path / "last.png") as page:
        with httpx.Client(base_url=live.url, timeout=600.0) as http:
            http.post("/reset", json={"task_id": "bursty_workload", "seed": 1})
            for batch_cap in (16, 16, 32, 32, 32, 48):
                http.post("/step", json={"action": {"batch_cap": batch_cap}})
        page.wait_for_function("document.getElementById('window').textContent === '6'")
        look(page, "followed", folder)


def test_an_opened_log_is_legible(
    browser: Any, server: LocalServer, folder: Path, tmp_path: Path
) -> None:
    """The other tab with a controller's log, of a task that is not known."""
    log = write_log(tmp_path / "operated.jsonl")
    with opened(browser, server.url, tmp_path / "last.png") as page:
        page.click("#tab_live")
        page.set_input_files("#log", log)
        page.wait_for_function("document.getElementById('window').textContent === '60'")
        look(page, "log", folder)
