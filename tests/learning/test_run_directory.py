"""A run's directory: whose it is, and what the metrics say."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from jaxserve.errors import InputError
from jaxserve.learning.run_directory import (
    EventFiles,
    Row,
    check_description,
    claim,
    has_run,
    open_directory,
    read_description,
    read_metrics,
    write_metrics,
)

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
    assert read_metrics(tmp_path, 3, (0, 7)) == ROWS
    assert read_metrics(tmp_path, 2, (0, 7)) == ROWS[:4]
    assert isinstance(read_metrics(tmp_path, 1, (0, 7))[0]["windows"], int)
    write_metrics(tmp_path, [])
    assert read_metrics(tmp_path, 0, (0, 7)) == []


def test_metrics_are_those_of_the_run(tmp_path: Path) -> None:
    """A row for each update and seed: none missing, none twice, none of another seed."""
    for rows in (ROWS[:-1], ROWS[1:], ROWS[:2] + ROWS, [], ROWS[:3] + ROWS[4:]):
        write_metrics(tmp_path, rows)
        with pytest.raises(InputError, match=r"metrics\.csv is not what the run wrote"):
            read_metrics(tmp_path, 3, (0, 7))
    write_metrics(tmp_path, ROWS)
    for updates, seeds in ((4, (0, 7)), (3, (0, 1)), (3, (0,))):
        with pytest.raises(InputError, match=r"metrics\.csv is not what the run wrote"):
            read_metrics(tmp_path, updates, seeds)


def test_directories(tmp_path: Path) -> None:
    """A new folder is made; a file in its place is named."""
    open_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out .*file cannot be used: File exists"):
        open_directory(tmp_path / "file")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "a,b\n1,2\n",
        "update,windows,seed\n1,2\n",
        "update,windows,seed\n1,x,0\n",
        "update,windows,seed\ninf,2,0\n",
    ],
)
def test_damaged_metrics_are_refused(tmp_path: Path, text: str | None) -> None:
    """Missing columns, cells, numbers or the whole file: one sentence with the path."""
    if text is not None:
        (tmp_path / "metrics.csv").write_text(text)
    with pytest.raises(InputError, match=r"metrics\.csv is not what the run wrote"):
        read_metrics(tmp_path, 3, (0,))


def test_a_directory_belongs_to_one_run(tmp_path: Path) -> None:
    """A run needs a new or empty directory, and goes on with what it was begun with."""
    run = tmp_path / "deep" / "run"
    with pytest.raises(InputError, match=r"has no run\.json: nothing there"):
        read_description(run, "nothing there")
    assert not has_run(run)
    begun = {"seeds": [0], "trace": None, "config": {"clip": 0.5, "width": 8}}
    claim(run, begun)
    assert has_run(run) and read_description(run, "") == begun
    with pytest.raises(InputError, match="is in use; name a new directory, or add --resume"):
        claim(run, {})
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"--out .*file cannot be used: File exists"):
        claim(tmp_path / "file", {})
    with pytest.raises(InputError, match=r"--out .*run cannot be used: Not a directory"):
        claim(tmp_path / "file" / "run", {})
    (run / "run.json").write_text("[]")
    with pytest.raises(InputError, match="must be a JSON object"):
        read_description(run, "")


def test_what_differs_is_named(tmp_path: Path) -> None:
    """The entry itself, not the group that it is in; and an entry that is not there."""
    begun = {"seeds": [0], "trace": None, "config": {"clip": 0.5, "width": 8}}
    check_description(tmp_path, begun, begun)
    check_description(tmp_path, begun, {"seeds": [0]})
    for expected, message in (
        ({"seeds": [1]}, r"seeds is \[1\], but the run in .* was begun with \[0\]; a run goes on"),
        ({"trace": "ab"}, "trace is ab, but the run in .* was begun with none"),
        ({"config": {"clip": 0.5, "width": 9}}, "width is 9, but the run in .* with 8"),
        ({"config": {"depth": 9}}, "the run in .* does not say its depth, because another version"),
        ({"table": "ab"}, "the run in .* does not say its table"),
    ):
        with pytest.raises(InputError, match=f"^{message}"):
            check_description(tmp_path, begun, expected)


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
