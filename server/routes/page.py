"""The page: static files without a build step, by itself or as a tab of OpenEnv's web interface."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.types import Scope

from server.wire.openenv_api import WEB_INTERFACE

_FILES = Path(__file__).resolve().parents[1] / "static"
_PAGE = "dashboard/"
_SPACES = ("https://huggingface.co", "https://*.hf.space")
"""Sites that show a Space in a frame."""
_POLICY = "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors"
"""Content-Security-Policy of the page, before the sites that may frame it. The older header
X-Frame-Options cannot list sites, and browsers ignore it beside frame-ancestors."""
# Gradio sizes a column by its content, and a frame of 100 % in it is 300 pixels wide. So column and
# frame are given the width of the window.
_TAB_STYLE = """
.gradio-container, .gradio-container .main { max-width: none !important; width: 100% !important; }
.gradio-container .main { padding: 0 8px !important; }
.html-container:has(iframe[title=jaxserve]) { padding: 0 !important; }
iframe[title=jaxserve] { display: block; width: 100%; height: calc(100vh - 72px); border: 0; }
"""


def add_page(app: FastAPI, origins: Sequence[str]) -> None:
    """Serves the page at ``/dashboard/``, and at ``/web`` unless OpenEnv's interface is there.

    Args:
      origins: sites that may show the page in a frame, besides this server and Spaces.
    """
    shared = ("jaxserve.rollouts.dashboard", "shared")  # base.css, the style of all pages
    files = _PageFiles(origins, directory=_FILES, packages=[shared], html=True)
    app.mount(f"/{_PAGE.rstrip('/')}", files, name="dashboard")
    if WEB_INTERFACE:
        return

    @app.get("/web", include_in_schema=False)
    async def web() -> Response:
        # Relative, since a proxy may have put the server below a path.
        return RedirectResponse(_PAGE)


class _PageFiles(StaticFiles):
    """Files with the headers of a page."""

    def __init__(self, origins: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        policy = " ".join((_POLICY, "'self'", *_SPACES, *origins))
        self._headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}

    async def get_response(self, path: str, scope: Scope) -> Response:
        answer = await super().get_response(path, scope)
        answer.headers.update(self._headers)
        return answer


def page_tab(*arguments: Any, **options: Any) -> Any:
    """The page as a tab of OpenEnv's interface, whose arguments it does not need."""
    del arguments, options
    import gradio

    frame = f'<iframe src="../{_PAGE}" title="jaxserve"></iframe>'
    with gradio.Blocks(title="jaxserve") as blocks:
        gradio.HTML(f"<style>{_TAB_STYLE}</style>{frame}")
    return blocks
