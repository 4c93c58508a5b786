"""The documentation builds as a site, without warnings and without the network."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.skipif(
    importlib.util.find_spec("sphinx") is None, reason="needs pip install 'jaxserve[docs]'"
)
@pytest.mark.slow
def test_builds_without_warnings(tmp_path: Path) -> None:
    """Links and anchors lead somewhere, every page is in the contents, and no page loads a style,
    script, font or picture from elsewhere."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going"]
    command += ["-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    for page in pages:
        html = page.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"([^\"]+)", html)
        loaded += re.findall(r"<link[^>]* rel=\"(?:stylesheet|preload|preconnect)\"[^>]*>", html)
        assert not [one for one in loaded if "//" in one], page.name
