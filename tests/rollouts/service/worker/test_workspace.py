"""Folders of a session's attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxserve.errors import InputError
from jaxserve.rollouts.presets import load_preset
from jaxserve.rollouts.service.worker.workspace import Workspace, write_files


def test_they_are_made_anew(tmp_path: Path) -> None:
    """The folders have a copy of the source and nothing of an earlier attempt, and other users have
    no access. A missing source is refused with one sentence, for agent and evaluator."""
    source, folders = tmp_path / "source", Workspace(tmp_path / "t" / "0.1")
    source.mkdir()
    (source / "a").write_text("1")
    (source / "b").symlink_to("nowhere")
    for _ in range(2):
        folders.make(source)
        fresh = folders.fresh(source)
        for top in (folders.top, fresh):
            assert top.stat().st_mode & 0o077 == 0
            assert sorted(path.name for path in (top / "work").iterdir()) == ["a", "b"]
            assert (top / "work" / "b").is_symlink()
            (top / "work" / "left").touch()
        for folder in (folders.home, folders.artifacts):
            assert list(folder.iterdir()) == []
            (folder / "left").touch()
    folders.make(None)
    assert list(folders.work.iterdir()) == []
    for make in (folders.make, folders.fresh):
        with pytest.raises(InputError, match="runtime: source cannot be copied: ") as caught:
            make(tmp_path / "gone")
        assert "\n" not in str(caught.value)


def test_files_of_a_sandbox_elsewhere(tmp_path: Path) -> None:
    """A preset's files name the sandbox's folder, and are written to the same place of this
    machine's folder, readable by its user only."""
    inside, outside = Workspace(Path("/elsewhere/s")), Workspace(tmp_path / "0.1")
    outside.make(None)
    launch = load_preset("codex").command("do it", "m", "http://g", "key", inside.home)
    write_files(launch, inside, outside)
    files = [path for path in outside.home.rglob("*") if path.is_file()]
    assert {inside.top / path.relative_to(outside.top) for path in files} == set(
        map(Path, launch.files)
    )
    assert files and all(path.stat().st_mode & 0o077 == 0 for path in files)
