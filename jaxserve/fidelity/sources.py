"""Measurements that the simulators are compared with; they lie outside the package."""

import csv
import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet

from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError

ENVIRONMENT_VARIABLE = "JAXSERVE_SHARED"


def shared_data() -> Path | None:
    """Directory of measured data, or None where there is none.

    Taken from the environment variable ``JAXSERVE_SHARED``; otherwise ``shared/data`` beside the
    source checkout.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    path = Path(named) if named else data_dir().parent.parent / "shared" / "data"
    return path if path.is_dir() else None


def read_columns(path: Path) -> dict[str, np.ndarray]:
    """Columns of a parquet or CSV file by name; CSV columns of numbers become float64.

    Raises:
      InputError: the file does not exist or has no rows.
    """
    if not path.is_file():
        raise InputError(f"measurement file {path} does not exist")
    if path.suffix == ".parquet":
        table = parquet.read_table(path)
        columns = {name: table[name].to_numpy() for name in table.column_names}
    else:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = {name: _numbers([row[name] for row in rows]) for name in (rows or [{}])[0]}
    if not columns or not len(next(iter(columns.values()))):
        raise InputError(f"measurement file {path} has no rows")
    return columns


def _numbers(values: list[str]) -> np.ndarray:
    """Float64 array where every entry is a number, else an array of strings."""
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values)
