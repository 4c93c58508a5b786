"""Directory of a training run: its description, and metrics of every update and seed."""

from __future__ import annotations

import csv
import io
import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError

Row = dict[str, float]
"""``update``, ``windows``, ``seed``, and what the update reported."""

_RUN = "run.json"
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


def claim(directory: Path, description: Mapping[str, Any]) -> None:
    """Begins a run in a new or empty directory.

    Raises:
      InputError: the directory is in use, or cannot be used.
    """
    open_directory(directory)
    if any(directory.iterdir()):
        raise InputError(f"--out {directory} is in use; name a new directory, or add --resume")
    write_atomic(directory / _RUN, (json.dumps(description, indent=2) + "\n").encode())


def has_run(directory: Path) -> bool:
    """Whether a run was begun there."""
    return (directory / _RUN).is_file()


def read_description(directory: Path, missing: str) -> Mapping[str, Any]:
    """Description of the run in a directory, as ``claim`` wrote it.

    Args:
      missing: what it means if there is no run.

    Raises:
      InputError: there is no run, or it cannot be read.
    """
    path = directory / _RUN
    missing = f"--out {directory} has no {_RUN}: {missing}"
    return JsonObject(read_json(path, str(path), missing), str(path))


def check_description(
    directory: Path, found: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Makes sure that a run is the one that is meant.

    Args:
      directory: of the run.
      found: from ``read_description``.
      expected: entries that it must have.

    Raises:
      InputError: names the first entry that it lacks or that differs.
    """
    for name, value in expected.items():
        if name not in found:
            raise InputError(
                f"the run in {directory} does not say its {name}, because another version of "
                "jaxserve began it; train again in another --out"
            )
        if isinstance(value, Mapping) and isinstance(found[name], Mapping):
            check_description(directory, found[name], value)
        elif found[name] != value:
            raise InputError(
                f"{name} is {_shown(value)}, but the run in {directory} was begun with "
                f"{_shown(found[name])}; a run goes on with what it was begun with"
            )


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def write_metrics(directory: Path, rows: Sequence[Row]) -> None:
    """Writes all rows of a run to ``metrics.csv``."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_atomic(directory / _METRICS, text.getvalue().encode())


def read_metrics(directory: Path, updates: int, seeds: Sequence[int]) -> list[Row]:
    """The rows of a run's first updates, of all its seeds.

    Raises:
      InputError: they cannot be read, or one is missing.
    """
    path = directory / _METRICS
    try:
        with path.open(newline="", encoding="utf-8") as file:
            found = csv.DictReader(file, strict=True)
            rows = [{name: float(value) for name, value in row.items()} for row in found]
        for row in rows:
            row |= {name: int(row[name]) for name in _WHOLE}
        rows = [row for row in rows if row["update"] <= updates]
        expected = itertools.product(range(1, updates + 1), seeds)
        if [(row["update"], row["seed"]) for row in rows] != list(expected):
            raise ValueError
    except (OSError, OverflowError, ValueError, TypeError, KeyError, csv.Error):
        raise InputError(
            f"{path} is not what the run wrote, a row of numbers for each update and seed; "
            "train again in another --out"
        ) from None
    return rows


class EventFiles:
    """The metrics for TensorBoard: a folder of event files for each seed, over windows played.

    A context manager. A run that is resumed writes them anew from its rows, because those of a run
    that was killed may lack the last ones or have some that the checkpoint does not know.
    """

    def __init__(self, directory: Path) -> None:
        """Opens the metrics of a run. Args: the run's directory.

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
