"""A training run's directory: whose it is, and the metrics of every update and seed."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.tasks import checks

Row = dict[str, float]
"""``update``, ``windows``, ``seed``, and what the update reported."""

_SETTINGS = "run.json"
_METRICS = "metrics.csv"
_EVENTS = "tensorboard"
_EVENTS_S = 5  # between two looks at what has to be written to them
_WHOLE = ("update", "windows", "seed")


def open_directory(directory: Path) -> None:
    """Makes a directory, and those above it, where it is not there.

    Raises:
      InputError: it cannot be made, read or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {directory} cannot be used: {error.strerror}") from None
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"--out {directory} cannot be used: it is not readable and writable")


def claim(directory: Path, settings: Mapping[str, Any]) -> None:
    """Begins a run in a new or empty directory.

    Raises:
      InputError: the directory is in use, or cannot be used.
    """
    open_directory(directory)
    if any(directory.iterdir()):
        raise InputError(f"--out {directory} is in use; name a new directory, or add --resume")
    write_atomic(directory / _SETTINGS, (json.dumps(settings, indent=2) + "\n").encode())


def check_settings(directory: Path, settings: Mapping[str, Any], missing: str) -> None:
    """Makes sure that the run in a directory is the one that ``settings`` describe.

    Args:
      missing: what it means if there is no run.

    Raises:
      InputError: there is no run, or a setting differs.
    """
    path = directory / _SETTINGS
    missing = f"--out {directory} has no {_SETTINGS}: {missing}"
    found = checks.mapping(read_json(path, str(path), missing), str(path))
    for name, value in settings.items():
        if found.get(name) != value:
            raise InputError(
                f"{name} is {value!r}, but the run in {directory} has {found.get(name)!r}; "
                "all of a run has the same settings"
            )


def write_metrics(directory: Path, rows: Sequence[Row]) -> None:
    """Writes all rows of a run to ``metrics.csv``."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_atomic(directory / _METRICS, text.getvalue().encode())


def read_metrics(directory: Path, updates: int) -> list[Row]:
    """The rows of a run's first updates.

    Raises:
      InputError: they cannot be read.
    """
    path = directory / _METRICS
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = csv.DictReader(file, strict=True)
            rows = [{name: float(value) for name, value in row.items()} for row in found]
        for row in rows:
            row |= {name: int(row[name]) for name in _WHOLE}
    except (OSError, ValueError, TypeError, KeyError, csv.Error):
        raise InputError(
            f"{path} is not what a run wrote, a row of numbers for each update and seed; "
            "train again in another --out"
        ) from None
    return [row for row in rows if row["update"] <= updates]


class EventFiles:
    """The metrics for TensorBoard: a folder of event files for each seed, over windows played.

    A context manager. A run that is resumed writes them anew from its rows, because those of a run
    that was killed may lack the last ones or have some that the checkpoint does not know.
    """

    def __init__(self, directory: Path) -> None:
        """Args: the run's directory.

        Raises:
          InputError: the package that writes the files is missing.
        """
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError:
            raise InputError(
                "--tensorboard needs tensorboardX, which the tensorboard extra installs: "
                "pip install 'jaxserve[tensorboard]'"
            ) from None
        self._open: Any = SummaryWriter
        self._folder = directory / _EVENTS
        self._writers: dict[float, Any] = {}
        self._written = 0

    def __enter__(self) -> EventFiles:
        shutil.rmtree(self._folder, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def extend(self, rows: Sequence[Row]) -> None:
        """Adds those of all rows of the run that are not there yet."""
        for row in rows[self._written :]:
            seed = row["seed"]
            if seed not in self._writers:
                folder = self._folder / f"seed_{seed}"
                self._writers[seed] = self._open(str(folder), flush_secs=_EVENTS_S)
            for name in row.keys() - set(_WHOLE):
                self._writers[seed].add_scalar(name, row[name], row["windows"])
        self._written = len(rows)
