"""The page: static files without a build step, by itself or as a tab of OpenEnv's web interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles

from server.wire.openenv_api import WEB_INTERFACE

_FILES = Path(__file__).resolve().parents[1] / "static"
_PAGE = "/dashboard/"
# Gradio sizes a column by its content, and a frame of 100 % in it is 300 pixels wide. So column and
# frame are given the width of the window.
_TAB_STYLE = """
.gradio-container, .gradio-container .main { max-width: none !important; width: 100% !important; }
.gradio-container .main { padding: 0 8px !important; }
.html-container:has(iframe[title=jaxserve]) { padding: 0 !important; }
iframe[title=jaxserve] { display: block; width: 100%; height: calc(100vh - 72px); border: 0; }
"""


def add_page(app: FastAPI) -> None:
    """Serves the page at ``/dashboard/``, and at ``/web`` unless OpenEnv's interface is there."""
    shared = ("jaxserve.rollouts.dashboard", "shared")  # base.css, the style of all pages
    files = StaticFiles(directory=_FILES, packages=[shared], html=True)
    app.mount(_PAGE.rstrip("/"), files, name="dashboard")
    if WEB_INTERFACE:
        return

    @app.get("/web", include_in_schema=False)
    @app.get("/web/", include_in_schema=False)
    async def web() -> Response:
        return RedirectResponse(_PAGE)


def page_tab(*arguments: Any, **options: Any) -> Any:
    """The page as a tab of OpenEnv's interface, whose arguments it does not need."""
    del arguments, options
    import gradio

    with gradio.Blocks(title="jaxserve") as blocks:
        gradio.HTML(f'<style>{_TAB_STYLE}</style><iframe src="{_PAGE}" title="jaxserve"></iframe>')
    return blocks
