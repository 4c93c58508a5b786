"""Where programs keep what must outlive them, and that only one of them does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxserve.runtime.storage import locked_file, state_folder

HOLDS = """
import sys
from pathlib import Path
from jaxserve.runtime.storage import locked_file
print(locked_file(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The named one, else the home's; none without a home."""
    assert state_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "jaxserve"
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert state_folder({}) == tmp_path / ".local" / "state" / "jaxserve"

    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert state_folder({}) is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps nobody out")
def test_one_at_a_time(tmp_path: Path) -> None:
    """Another process gets the file when the one that has it is killed, or lets go of it."""
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLDS, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n" and locked_file(path) is None
        other.kill()
    mine = locked_file(path)
    assert mine is not None and path.stat().st_mode & 0o777 == 0o600
    again = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert again.stdout == "False\n"
    os.close(mine)
    again = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert again.stdout == "True\n"
