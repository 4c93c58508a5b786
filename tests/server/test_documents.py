"""The code blocks of docs/server.md and docs/deployment.md run on a real server."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.runtime.child_processes import own_process, wait_until_answers
from server import app as command_line
from server.local import LocalServer, free_port
from tests.docs.snippets import Block, blocks, run_code

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "server.md"
_ADDRESS = "localhost:7860"
_START = "python -m server.app"
_OF_OTHERS = {"--build-arg", "--skip-docker", "--state", "--records", "--scheduling-policy"}
"""Options of Docker, of the check before a release, of the gateway and of an engine."""
_BASELINE = "server.players.baseline_inference"


def of_the_page(word: str) -> str:
    """The one block with this word in it."""
    (found,) = (block.code for block in blocks(_PAGE) if word in block.code)
    return found


def run(block: Block, server: LocalServer, folder: Path) -> str:
    code = block.code.replace(_ADDRESS, f"127.0.0.1:{server.port}")
    return run_code(block.language, code, folder)


def test_python_of_the_page_runs(
    server: LocalServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The client plays a whole episode and prints its score; httpx plays a window, and eight."""
    client, plain, many = (block for block in blocks(_PAGE) if block.language == "python")
    assert 0.0 <= float(run(client, server, tmp_path)) <= 1.0
    *before, last = many.code.rstrip().splitlines()
    both = [plain.code, *before, f"print(len({last}))"]
    assert run(dataclasses.replace(plain, code="\n".join(both)), server, tmp_path) == "8\n"


def test_every_command_of_the_page_is_tried() -> None:
    """One starts a server, one scores on it; the tests below run them."""
    commands = [block.code for block in blocks(_PAGE) if block.language == "sh"]
    assert len(commands) == 2
    assert commands == [of_the_page(_START), of_the_page(_BASELINE)]


def test_documents_name_only_options_that_there_are() -> None:
    """Of the command that starts a server: in its own commands, and wherever else one is named."""
    known = set(re.findall(r"--[a-z-]+", command_line.option_parser().format_help()))
    named = 0
    for page in (_PAGE, _PAGE.with_name("deployment.md"), _PAGE.with_name("live_environment.md")):
        for code in re.findall(r"(?s)```.*?```|`[^`\n]+`", page.read_text()):
            if "server.app" not in code and not code.startswith("`--"):
                continue
            options = set(re.findall(r"(?<!\S)`?(--[a-z-]+)", code)) - _OF_OTHERS
            assert options <= known, f"{page.name}: {code}"
            named += len(options)
    assert named >= 4


@pytest.mark.slow
def test_the_command_that_starts_a_server(tmp_path: Path) -> None:
    """It answers on the port that it names."""
    port = free_port()
    command = of_the_page(_START).replace("7860", str(port))
    assert str(port) in command
    environment = os.environ | {
        "JAXSERVE_DATABASE": str(tmp_path / "log"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    quiet = {"stderr": subprocess.DEVNULL}
    with own_process(f"exec {command}", shell=True, cwd=_ROOT, env=environment, **quiet) as process:
        wait_until_answers(f"http://127.0.0.1:{port}/health", process)


@pytest.mark.slow
def test_the_command_that_scores_agents(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line for every task."""
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    (block,) = (block for block in blocks(_PAGE) if _BASELINE in block.code)
    printed = run(block, server, tmp_path)
    assert [line.split()[1] for line in printed.splitlines()[:2]] == [
        "static_workload:",
        "bursty_workload:",
    ]


@pytest.mark.deep
def test_the_check_before_a_release_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it that needs no Docker engine and no network."""
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    (block,) = (block for block in blocks(_ROOT / "docs" / "deployment.md"))
    printed = run_code("sh", block.code, _ROOT)
    assert printed.count("│ pass ") == 6
    assert "FAIL" not in printed
