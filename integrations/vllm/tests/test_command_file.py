"""Commands by a file."""

import os
from pathlib import Path

from jaxserve_vllm.command_file import CommandFile
from jaxserve_vllm.engine_control.command import Command


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def test_a_new_command_is_read_once(tmp_path: Path) -> None:
    """Also when it is the first one, or the same again: the lease begins anew."""
    path = tmp_path / "command.json"
    channel = CommandFile(path)
    assert channel.poll() is None
    for _ in range(2):
        replace(path, '{"lease_s": 5, "knobs": {"batch_cap": 8}}')
        assert channel.poll() == Command(5.0, {"batch_cap": 8})
        assert channel.poll() is None


def test_what_was_there_at_the_start_is_not_read(tmp_path: Path) -> None:
    """The file may be of another day."""
    path = tmp_path / "command.json"
    path.write_text('{"lease_s": 5, "knobs": {"batch_cap": 8}}')
    assert CommandFile(path).poll() is None


def test_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    """Nor does one that goes away; the next good one is read."""
    path = tmp_path / "command.json"
    channel = CommandFile(path)
    replace(path, '{"lease_s": 5, "kno')
    assert channel.poll() is None
    path.unlink()
    assert channel.poll() is None
    path.mkdir()
    assert channel.poll() is None
    path.rmdir()
    replace(path, '{"lease_s": 5}')
    assert channel.poll() == Command(5.0, {})
