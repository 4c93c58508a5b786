"""Promises of the data-file helpers."""

import os
from pathlib import Path

import pytest

from jaxserve import datafiles
from jaxserve.errors import InputError


def test_missing_data_file_is_named() -> None:
    """A missing data file raises one sentence with its name."""
    with pytest.raises(InputError, match=r"'no_such\.json' does not exist"):
        datafiles.load_json("no_such.json")


def test_broken_json_names_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken JSON raises with file, line and column instead of a parser traceback."""
    (tmp_path / "broken.json").write_text('{"a": 1,\n "b" }')
    monkeypatch.setattr(datafiles, "data_dir", lambda: tmp_path)
    with pytest.raises(InputError, match=r"broken\.json.*line 2 column 6"):
        datafiles.load_json("broken.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "nothing to see"),
        (b"{", "the file is not readable JSON: .* line 1 column 2"),
        (b"\xff", "the file is not readable JSON"),
        (b"[" * 100_000, "the file is not readable JSON"),
    ],
)
def test_unreadable_json(tmp_path: Path, content: bytes | None, message: str) -> None:
    """Missing, broken, binary and bottomless files get a sentence."""
    path = tmp_path / "file.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        datafiles.read_json(path, "the file", "nothing to see")


def test_write_atomic_replaces_and_keeps_mode(tmp_path: Path) -> None:
    """A write replaces the old content, leaves no temporary file and is readable as usual."""
    path = tmp_path / "deep" / "file.bin"
    datafiles.write_atomic(path, b"old")
    datafiles.write_atomic(path, b"new")
    ordinary = tmp_path / "ordinary"
    ordinary.write_bytes(b"")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file.bin"]
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_a_write_leaves_the_umask_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It belongs to the whole process, in which other threads make files meanwhile."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was set"))
    datafiles.write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that dies before the rename leaves the old file and nothing else."""
    path = tmp_path / "file.bin"
    datafiles.write_atomic(path, b"old")

    def interrupted(source: str, target: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        datafiles.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]
