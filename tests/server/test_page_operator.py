"""The page of a server with a language model and with OpenEnv's own web interface."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.spaces import DEFAULT_ACTION
from server.local import LocalServer
from tests.server.browser import opened, wait_until_idle, window
from tests.server.players.stub_model import Model

pytestmark = pytest.mark.slow


def test_a_language_model_drives_and_says_why(
    browser: Any, modelled: LocalServer, model: Model, tmp_path: Path
) -> None:
    """Its knobs are held, its reasons are listed, also after a reload, and its budget ends its
    drive with a sentence."""
    model.answers = [
        json.dumps({"reason": "The queue grows.", **DEFAULT_ACTION, "batch_cap": cap})
        for cap in (64, 96, 128)
    ]
    url = f"{modelled.url}/dashboard/"
    with opened(browser, url, tmp_path / "driven.png") as page:
        page.select_option("#agent", "language_model")
        page.click("#drive")
        wait_until_idle(page)
        # Of 250 tokens a decision takes 100: the third is the last that begins.
        assert window(page) == 30
        assert "JAXSERVE_MODEL_TOKENS" in page.inner_text("#status")
        assert httpx.get(f"{modelled.url}/runtime").json()["language_model"] is False
        assert page.input_value("#batch_cap_exact") == "128"
        events = page.locator("#happened li").all_text_contents()
        for cap in ("64 \u2192 96", "96 \u2192 128"):
            assert any(f"language model: batch cap {cap}" in event for event in events)
        assert all("The queue grows." in event for event in events if "batch cap" in event)
        page.reload()
        wait_until_idle(page)
        assert page.locator("#happened li").all_text_contents() == events


def test_the_tab_of_openenv_has_the_whole_window(
    browser: Any, modelled: LocalServer, tmp_path: Path
) -> None:
    """As wide as the window, but for a margin, and nothing of it is cut."""
    for width in (1400, 390):
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(f"{modelled.url}/web")
        frame = page.wait_for_selector('iframe[title="jaxserve"]')
        inside = frame.content_frame()
        inside.wait_for_selector("#numbers .tile")
        box = frame.bounding_box()
        page.screenshot(path=tmp_path / f"tab {width}.png")
        assert box["width"] > width - 60
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        shown = page.evaluate(
            "(e) => document.elementFromPoint(e[0], e[1]).tagName",
            [box["x"] + box["width"] - 5, box["y"] + 100],
        )
        assert shown == "IFRAME"
        page.close()
