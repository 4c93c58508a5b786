"""The check before a release: its options, without what it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from scripts import pre_submission_check as check

_SERVER: Any = SimpleNamespace(url="http://127.0.0.1:1")
_SPACE = "https://me-jaxserve.hf.space"
_OPENAI = [sys.executable, "-m", "server.players.baseline_inference", "--mode", "openai"]


@pytest.mark.parametrize(
    ("options", "runs"),
    [
        ([], {}),
        (
            ["--run-openai-baseline"],
            {"openai baseline": ["--runtime", "in-process", "--base-url", _SERVER.url]},
        ),
        (
            ["--run-openai-baseline", "--baseline-runtime", "http", "--model", "m"],
            {
                "openai baseline": [
                    *("--runtime", "http", "--base-url", _SERVER.url),
                    *("--model", "m"),
                ]
            },
        ),
        (["--space-url", _SPACE], {"space": ["openenv", "validate", "--url", _SPACE]}),
    ],
)
def test_what_costs_money_or_is_elsewhere_runs_only_where_it_is_asked_for(
    options: list[str],
    runs: dict[str, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A language model where and which one is said, and a Space with the key of its owner."""
    ran: list[list[str]] = []
    posted: list[tuple[str, dict[str, str]]] = []

    def post(url: str, headers: dict[str, str], **more: Any) -> httpx.Response:
        posted.append((url, headers))
        return httpx.Response(200, request=httpx.Request("POST", url))

    monkeypatch.setenv("HF_TOKEN", "hf-key")
    monkeypatch.setattr(check, "_run", lambda command: ran.append(command) or "done")
    monkeypatch.setattr(httpx, "post", post)
    checks = check._checks(check._parser().parse_args(options), _SERVER, tmp_path)
    for name in ("openai baseline", "space"):
        ran.clear()
        if name in runs:
            assert checks[name]() == "done"
            assert ran == [_OPENAI + runs[name] if name == "openai baseline" else runs[name]]
        else:
            with pytest.raises(check.Skipped, match="not asked for: --"):
                checks[name]()
            assert ran == []
    asked = [(f"{_SPACE}/reset", {"Authorization": "Bearer hf-key"})]
    assert posted == (asked if "space" in runs else [])
