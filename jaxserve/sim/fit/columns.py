"""Columns of a file with one measurement a row."""

import csv
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from jaxserve.errors import InputError

_MAX_VALUE = 1e12


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Columns of a parquet or CSV file by name; CSV columns of numbers become float64.

    Raises:
      InputError: the file does not exist, is not readable or has no rows.
    """
    if not path.is_file():
        raise InputError(f"measurement file {path} does not exist")
    try:
        columns = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except csv.Error as error:
        raise InputError(f"measurement file {path}: {error}") from None
    except (pa.ArrowException, OSError, ValueError):
        kind = "parquet" if path.suffix == ".parquet" else "CSV"
        raise InputError(f"measurement file {path} is not a readable {kind} file") from None
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"measurement file {path} has no rows")
    return columns


def numbers(columns: dict[str, np.ndarray], name: str, where: str) -> NDArray[np.float64]:
    """A column as float64[n], each from 0 to 1e12, beyond which no measurement is.

    Raises:
      InputError: it has anything else; the message names ``where``, row (from 1) and column.
    """
    try:
        values = columns[name].astype(np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where}: column {name} has other than numbers") from None
    wrong = np.flatnonzero(~((values >= 0) & (values <= _MAX_VALUE)))
    if len(wrong):
        raise InputError(
            f"{where}: row {wrong[0] + 1}, column {name} is {values[wrong[0]]:g}; it must be a "
            f"number from 0 to {_MAX_VALUE:g}"
        )
    return values


def _parquet(path: Path) -> dict[str, np.ndarray]:
    table = parquet.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def _csv(path: Path) -> dict[str, np.ndarray]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        for number, row in enumerate(rows, 1):
            if None in row or None in row.values():
                raise csv.Error(f"row {number} has not as many values as the header")
        return {name: _parsed([row[name] for row in rows]) for name in reader.fieldnames or ()}


def _parsed(values: list[str]) -> np.ndarray:
    """Float64 array where every entry is a number, else an array of what was read."""
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values)
