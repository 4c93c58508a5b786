"""Files that were asked for are checked before the work and written whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxserve.errors import InputError
from jaxserve.show.outputs import check_output, write_output


def test_good_paths(tmp_path: Path) -> None:
    """A new file, an old one and none at all pass; what is written is there."""
    path = tmp_path / "out.json"
    check_output(None, "--json")
    check_output(path, "--json")
    write_output(path, b"1", "--json")
    check_output(path, "--json")
    write_output(path, b"22", "--json")
    assert path.read_bytes() == b"22"
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folder(tmp_path: Path) -> None:
    """The folder is named; it is not made."""
    path = tmp_path / "missing" / "out.json"
    with pytest.raises(InputError, match=r"--json is .*, but the folder .*missing does not exist"):
        check_output(path, "--json")
    assert not path.parent.exists()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A path that is a folder is refused."""
    with pytest.raises(InputError, match="a folder; it must name a file"):
        check_output(tmp_path, "--plot")


def test_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be written is refused at once (the root user can write everything)."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(InputError, match="is not writable"):
        check_output(tmp_path / "out.json", "--json")


def test_file_system_refuses() -> None:
    """A failure that no check foresees is one sentence as well."""
    with pytest.raises(InputError, match=r"--json is /proc/out\.json, but writing it failed"):
        write_output(Path("/proc/out.json"), b"1", "--json")
