"""Promises of reading measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.fit.columns import numbers, read_columns


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv_columns_keep_text_and_numbers(tmp_path: Path, encoding: str) -> None:
    """Columns of numbers become floats, others stay text; a byte order mark is neither."""
    path = tmp_path / "a.csv"
    path.write_text("name,value\nx,1\ny,2.5\n", encoding)
    columns = read_columns(path)
    assert columns["name"].tolist() == ["x", "y"]
    np.testing.assert_array_equal(columns["value"], [1.0, 2.5])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("empty.csv", b"a,b\n", r"empty\.csv has no rows"),
        ("nothing.csv", b"", r"nothing\.csv has no rows"),
        ("short.csv", b"a,b\n1,2\n1\n", "row 2 has not as many values as the header"),
        ("long.csv", b"a,b\n1,2,3\n", "row 1 has not as many values as the header"),
        ("a.parquet", b"a,b\n1,2\n", "not a readable parquet file"),
        ("a.csv", b"\xff\xfe\n1\n", "not a readable CSV file"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, name: str, text: bytes, message: str) -> None:
    """With what is wrong."""
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        read_columns(tmp_path / "none.csv")
    (tmp_path / name).write_bytes(text)
    with pytest.raises(InputError, match=message):
        read_columns(tmp_path / name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, -2.0], "a file: row 2, column x is -2; it must be a number from 0 to"),
        ([np.inf, 1.0], "row 1, column x is inf"),
        ([1.0, 1e13], "row 2, column x is 1e\\+13"),
        (["1", "many"], "column x has other than numbers"),
    ],
)
def test_what_is_no_number_is_refused(values: list, message: str) -> None:
    """With its row and column."""
    with pytest.raises(InputError, match=message):
        numbers({"x": np.array(values)}, "x", "a file")
