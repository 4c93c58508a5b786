"""Where a benchmark's text goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.page import placed, publish
from jaxserve.errors import InputError

PAGE = "# Title\n\n<!-- benchmark -->\n| old |\n<!-- end -->\n\nMore. <!-- end -->\n"


def test_only_its_block_is_replaced(tmp_path: Path) -> None:
    """Where the page has one; the same text again changes nothing."""
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    for _ in range(2):
        assert publish(lambda: "| new \\1 |\n", path) == 0
        assert path.read_text() == PAGE.replace("| old |", "| new \\1 |")


def test_a_page_of_its_own(tmp_path: Path) -> None:
    """Is written anew."""
    path = tmp_path / "page.md"
    path.write_text("old")
    assert publish(lambda: "new", path) == 0 and path.read_text() == "new"
    assert placed("", "text") == "text"


def test_a_failure_leaves_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And is one sentence."""

    def fail() -> str:
        raise InputError("the engine is none")

    path = tmp_path / "page.md"
    path.write_text(PAGE)
    assert publish(fail, path) == 2 and path.read_text() == PAGE
    assert capsys.readouterr().err == "benchmarks: the engine is none\n"
