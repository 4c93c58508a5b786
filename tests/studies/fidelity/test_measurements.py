"""Where measurements lie, and when one passes."""

from pathlib import Path

import pytest

from jaxserve.studies.fidelity import measurements
from jaxserve.studies.fidelity.measurements import FidelityRow


def test_directory_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment variable names the directory; one that does not exist counts as absent."""
    monkeypatch.setenv("JAXSERVE_SHARED", str(tmp_path))
    assert measurements.shared_data() == tmp_path
    monkeypatch.setenv("JAXSERVE_SHARED", str(tmp_path / "none"))
    assert measurements.shared_data() is None


def test_row_passes_up_to_its_bar() -> None:
    """A row passes at its bar and fails above it, and for an error that is not a number."""
    assert FidelityRow.within("a", 0.03, 0.03, "MAPE", "").passed
    assert not FidelityRow.within("a", 0.031, 0.03, "MAPE", "").passed
    assert not FidelityRow.within("a", float("nan"), 0.03, "MAPE", "").passed
