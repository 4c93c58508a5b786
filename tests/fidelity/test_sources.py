"""Promises of reading measurements."""

from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.fidelity import sources
from jaxserve.fidelity.rows import FidelityRow


def test_directory_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable names the directory; one that does not exist counts as absent."""
    monkeypatch.setenv("JAXSERVE_SHARED", str(tmp_path))
    assert sources.shared_data() == tmp_path
    monkeypatch.setenv("JAXSERVE_SHARED", str(tmp_path / "none"))
    assert sources.shared_data() is None


def test_csv_columns_keep_text_and_numbers(tmp_path: Path) -> None:
    """Columns of numbers become floats, others stay text."""
    path = tmp_path / "a.csv"
    path.write_text("name,value\nx,1\ny,2.5\n")
    columns = sources.read_columns(path)
    assert columns["name"].tolist() == ["x", "y"]
    np.testing.assert_array_equal(columns["value"], [1.0, 2.5])


def test_missing_and_empty_files_are_named(tmp_path: Path) -> None:
    """A missing file and a file without rows raise with their path."""
    with pytest.raises(InputError, match=r"none\.csv does not exist"):
        sources.read_columns(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("a,b\n")
    with pytest.raises(InputError, match=r"empty\.csv has no rows"):
        sources.read_columns(tmp_path / "empty.csv")


def test_row_passes_up_to_its_bar() -> None:
    """A row passes at its bar and fails above it, and for an error that is not a number."""
    assert FidelityRow.within("a", 0.03, 0.03, "MAPE", "").passed
    assert not FidelityRow.within("a", 0.031, 0.03, "MAPE", "").passed
    assert not FidelityRow.within("a", float("nan"), 0.03, "MAPE", "").passed
