"""The page in Chromium, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened(browser: Any, url: str, picture: Path) -> Iterator[Any]:
    """The page, loaded; at the end a screenshot, and no error on the way.

    Args:
      picture: where the screenshot goes.
    """
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(120_000)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "requestfailed", lambda failed: problems.append(failed.url) if _broken(failed) else None
    )
    page.on("console", lambda said: problems.append(said.text) if _wrong(said) else None)
    page.goto(url)
    wait_until_idle(page)
    yield page
    page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 10_000
    assert problems == []
    page.close()


def _broken(failed: Any) -> bool:
    """Whether a request failed for another reason than that its page was left."""
    return failed.failure != "net::ERR_ABORTED"


def _wrong(said: Any) -> bool:
    """Whether the console has something that is not the answer to a request: those the page shows
    itself."""
    return said.type in ("error", "warning") and "Failed to load resource" not in said.text


def wait_until_idle(page: Any) -> None:
    """No button waits for the server."""
    page.wait_for_function(
        "!document.getElementById('step').disabled"
        " && (location.hash || !document.getElementById('live').hidden)"
    )


def window(page: Any) -> int:
    """The window that is shown."""
    return int(page.inner_text("#window"))


def all_drawn(page: Any) -> bool:
    """Whether each chart that has something to show has more colours than an empty one."""
    assert page.locator("#charts canvas").count() >= 6
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")
    return page.evaluate(
        """() => [...document.querySelectorAll('#charts canvas, #lanes canvas')].every((canvas) => {
          const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(pixels.data.buffer)).size > 10;
        })"""
    )
