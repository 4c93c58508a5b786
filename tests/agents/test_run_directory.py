"""A run's directory: whose it is, and what the metrics say."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from jaxserve.agents.run_directory import (
    EventFiles,
    Row,
    check_settings,
    claim,
    open_directory,
    read_metrics,
    write_metrics,
)
from jaxserve.errors import InputError

ROWS: list[Row] = [
    {
        "update": update,
        "windows": 400 * update,
        "seed": seed,
        "reward": update + seed / 10,
        "kl": 0.5,
    }
    for update in (1, 2, 3)
    for seed in (0, 7)
]


def events(path: Path) -> list[tuple[int, str, float]]:
    """Step, name and value of every number in a folder's event files."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(path.iterdir()):
        data = file.read_bytes()
        while data:
            # A record is a length, its checksum, the event and its checksum.
            (length,) = struct.unpack_from("<Q", data)
            event = Event.FromString(data[12 : 12 + length])
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value]
            data = data[16 + length :]
    return found


def test_metrics_come_back(tmp_path: Path) -> None:
    """What is written is read, as far as the updates that are asked for; numbers stay exact."""
    write_metrics(tmp_path, ROWS)
    assert read_metrics(tmp_path, 3) == ROWS
    assert read_metrics(tmp_path, 2) == ROWS[:4]
    assert isinstance(read_metrics(tmp_path, 1)[0]["windows"], int)
    write_metrics(tmp_path, [])
    assert read_metrics(tmp_path, 3) == []


def test_directories(tmp_path: Path) -> None:
    """A new folder is made; a file in its place is named."""
    open_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out .*file cannot be used: File exists"):
        open_directory(tmp_path / "file")


@pytest.mark.parametrize(
    "text", [None, "a,b\n1,2\n", "update,windows,seed\n1,2\n", "update,windows,seed\n1,x,0\n"]
)
def test_damaged_metrics_are_refused(tmp_path: Path, text: str | None) -> None:
    """Missing columns, cells, numbers or the whole file: one sentence with the path."""
    if text is not None:
        (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(InputError, match=r"metrics\.csv is not what a run wrote"):
        read_metrics(tmp_path, 3)


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    """A run needs a new or empty directory and goes on with the settings that it began with."""
    run = tmp_path / "deep" / "run"
    with pytest.raises(InputError, match=r"has no run\.json: nothing there"):
        check_settings(run, {}, "nothing there")
    claim(run, {"seeds": [0], "task": "a"})
    check_settings(run, {"seeds": [0], "task": "a"}, "")
    with pytest.raises(InputError, match=r"seeds is \[1\], but the run in .* has \[0\]"):
        check_settings(run, {"seeds": [1], "task": "a"}, "")
    with pytest.raises(InputError, match="is in use; name a new directory, or add --resume"):
        claim(run, {})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--out .*file cannot be used: File exists"):
        claim(tmp_path / "file", {})
    with pytest.raises(InputError, match=r"--out .*run cannot be used: Not a directory"):
        claim(tmp_path / "file" / "run", {})
    (run / "run.json").write_text("[]")
    with pytest.raises(InputError, match="must be a JSON object"):
        check_settings(run, {}, "")


def test_event_files_have_every_number_once(tmp_path: Path) -> None:
    """Each seed has a folder with its numbers over windows, also after a run was resumed."""
    with EventFiles(tmp_path) as files:
        files.extend(ROWS[:2])
        files.extend(ROWS[:4])
    with EventFiles(tmp_path) as resumed:
        resumed.extend(ROWS[:2])
        resumed.extend(ROWS)
    for seed in (0, 7):
        found = events(tmp_path / "tensorboard" / f"seed_{seed}")
        expected = [
            (int(row["windows"]), name, pytest.approx(row[name]))
            for row in ROWS
            for name in ("reward", "kl")
            if row["seed"] == seed
        ]
        assert sorted(found) == sorted(expected)


def test_event_files_need_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is a sentence with the command that installs it, and no folder."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"pip install 'jaxserve\[tensorboard\]'"):
        EventFiles(tmp_path)
    assert not any(tmp_path.iterdir())
