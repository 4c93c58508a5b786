"""The command and the code of docs/rollouts.md run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.snippets import blocks
from tests.gateway.test_page import printed_by
from tests.gateway.token_engine import TokenEngine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rollouts.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client talks through a session, and both turns are one trace."""
    monkeypatch.chdir(tmp_path)
    (command,) = (block.code.strip() for block in blocks(PAGE) if block.language == "sh")
    codes = [block.code for block in blocks(PAGE) if block.language == "python"]
    with TokenEngine("vllm") as engine:
        printed = printed_by(command, codes, engine.url)
    trace, counts = printed.splitlines()
    between = [0] * len("<And?>.")
    assert trace == f"17 {[1, 1, 1, *between, 1, 1, 1]} (13,)" and counts == "{} {}"
