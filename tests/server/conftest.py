"""Clients of the server, and servers for its page, that many tests share."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.local import LocalServer
from tests.mock_engine.conftest import running
from tests.server.players.stub_model import Model
from tests.server.small_disk import mounted


@pytest.fixture
def http(server: LocalServer) -> Iterator[httpx.Client]:
    """An HTTP client of the shared server."""
    with httpx.Client(base_url=server.url, timeout=600.0, verify=False) as client:
        yield client


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 500 KB."""
    with mounted(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """The language model of ``modelled``."""
    stub = Model()
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def modelled(start_servers_of_module: Callable[..., LocalServer], model: Model) -> LocalServer:
    """A server whose operator pays for a model, without asking for a token, and with OpenEnv's own
    web interface."""
    pytest.importorskip("gradio")
    return start_servers_of_module(
        OPENAI_API_KEY="sk-of-the-test",
        API_BASE_URL=model.url,
        JAXSERVE_MODEL_TOKENS="250",
        ENABLE_WEB_INTERFACE="true",
    )


@pytest.fixture(scope="module")
def live(start_servers_of_module: Callable[..., LocalServer]) -> Iterator[LocalServer]:
    """A server whose episodes are played on a mock engine."""
    with running(max_model_len=2048, batch_cap=64) as engine:
        yield start_servers_of_module(JAXSERVE_MODE="live", JAXSERVE_LIVE_URL=engine.url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium; where there is none, the test is skipped.

    Playwright keeps an event loop running while it is there, beside which no other test can have
    one: it ends with the file.
    """
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no chromium (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        running = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()
