"""Every state of the page in light, in dark and on a phone: pictures, and what can be checked.

``JAXSERVE_PICTURES`` names a folder in which the pictures stay.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.local import LocalServer
from tests.server.browser import opened, wait_until_idle

pytestmark = pytest.mark.slow

SCREENS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1440, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1440, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
    "dark phone": {"color_scheme": "dark", "viewport": {"width": 390, "height": 844}},
}
FAULTS = Path(__file__).with_name("legible.js").read_text()
FIND = """async (text) => {
  const found = await import(URL.createObjectURL(new Blob([text], { type: 'text/javascript' })));
  return { cut: found.cut(), nameless: found.nameless(), faint: found.faint() };
}"""


def fresh(page: Any) -> None:
    """As it opens."""


def played(page: Any) -> None:
    """By hand, then by an agent, through a burst and a change of tier."""
    page.select_option("#task", "adversarial_multitenant")
    page.wait_for_function("document.getElementById('about').innerText.startsWith('Three')")
    wait_until_idle(page)
    page.fill("#windows", "30")
    page.click("#run")
    wait_until_idle(page)
    page.click("#drive")
    page.wait_for_function("Number(document.getElementById('window').textContent) >= 90")
    page.click("#stop")
    wait_until_idle(page)
    page.wait_for_function("document.querySelector('#numbers').innerText.includes('best static')")


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


def live(page: Any) -> None:
    """The other tab."""
    page.click("#tab_live")


STATES: tuple[Callable[[Any], None], ...] = (fresh, played, waiting, refused, over, live)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_every_state_is_legible(
    browser: Any, server: LocalServer, tmp_path: Path, state: Callable[[Any], None]
) -> None:
    """Nothing sticks out, no text is faint, everything that takes the focus has a name."""
    folder = Path(os.environ.get("JAXSERVE_PICTURES", tmp_path))
    with opened(browser, server.url, tmp_path / "last.png") as page:
        state(page)
        for name, screen in SCREENS.items():
            page.emulate_media(color_scheme=screen["color_scheme"])
            page.set_viewport_size(screen["viewport"])
            page.wait_for_timeout(300)
            page.screenshot(path=folder / f"{state.__name__} {name}.png", full_page=True)
            assert page.evaluate(FIND, FAULTS) == {"cut": [], "nameless": [], "faint": []}
