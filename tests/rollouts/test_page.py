"""The command and the code of docs/rollouts.md run."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from server.local import free_port
from tests.docs.snippets import blocks
from tests.gateway.test_page import running
from tests.gateway.token_engine import TokenEngine

PAGE = Path(__file__).resolve().parents[2] / "docs" / "rollouts.md"


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client talks through a session, and both turns are one trace."""
    monkeypatch.chdir(tmp_path)
    (command,) = (block.code.strip() for block in blocks(PAGE) if block.language == "sh")
    codes = [block.code for block in blocks(PAGE) if block.language == "python"]
    port, control_port = free_port(), free_port()
    with TokenEngine("vllm") as engine:
        command = command.replace("http://127.0.0.1:8000", engine.url)
        command = command.replace("--port 9000", f"--port {port} --control-port {control_port}")
        printed = StringIO()
        with running(command, f"http://127.0.0.1:{port}"), redirect_stdout(printed):
            names: dict[str, object] = {}
            for code in codes:
                code = code.replace(":9000", f":{port}").replace(":9001", f":{control_port}")
                exec(compile(code, str(PAGE), "exec"), names)
    trace, counts = printed.getvalue().splitlines()
    between = [0] * len("<And?>.")
    assert trace == f"17 {[1, 1, 1, *between, 1, 1, 1]} (13,)" and counts == "{} {}"
