"""Where programs keep what must outlive them, and that only one of them does."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from jaxserve.runtime.storage import connect, lock_file, state_folder

HOLDS = """
import sys
from pathlib import Path
from jaxserve.runtime.storage import lock_file
lock = lock_file(Path(sys.argv[1]))
print(lock is not None, flush=True)
sys.stdin.read()
"""


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The named one, else the home's; none without a home."""
    assert state_folder({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "jaxserve"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert state_folder({}) == platformdirs.user_state_path("jaxserve", appauthor=False)
    if sys.platform == "linux":
        assert state_folder({}) == tmp_path / ".local" / "state" / "jaxserve"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert state_folder({}) is None


def test_a_file_of_another_version_stays_as_it_is(tmp_path: Path) -> None:
    """To the byte: it may be another program's."""
    path = tmp_path / "theirs.sqlite3"
    theirs = sqlite3.connect(path)
    theirs.executescript("CREATE TABLE things (name TEXT); PRAGMA user_version = 7;")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(sqlite3.DatabaseError, match="schema version 7, not 2"):
        connect(path, "", 2, "NORMAL", check=True)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_one_at_a_time(tmp_path: Path) -> None:
    """Another process gets the file when the one that has it is killed, or lets go of it."""
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", HOLDS, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n" and lock_file(path) is None
        other.kill()
    mine = lock_file(path)
    assert mine is not None and path.stat().st_mode & 0o777 == 0o600
    again = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert again.stdout == "False\n"
    mine.release()
    again = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert again.stdout == "True\n"
