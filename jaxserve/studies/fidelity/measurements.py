"""The directory of measurements, and the row that every check against them returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from jaxserve.datafiles import data_dir

ENVIRONMENT_VARIABLE = "JAXSERVE_SHARED"


@dataclass(frozen=True)
class FidelityRow:
    """One comparison of a simulator with a measurement."""

    check: str
    """name of the comparison."""
    measured: float
    """error found, in ``unit``."""
    bar: float
    """largest error that passes, in ``unit``."""
    unit: str
    """unit of ``measured`` and ``bar``."""
    passed: bool
    """whether ``measured`` is within ``bar``."""
    detail: str
    """number of points, rows compared, and cause of the remaining error."""

    @classmethod
    def within(cls, check: str, measured: float, bar: float, unit: str, detail: str) -> FidelityRow:
        """Row that passes if ``measured`` is at most ``bar``."""
        return cls(check, measured, bar, unit, bool(measured <= bar), detail)

    def __str__(self) -> str:
        """One line for a terminal."""
        return f"{self.check}: {self.measured:.3g} {self.unit}, bar {self.bar:g}; {self.detail}"


def shared_data() -> Path | None:
    """Directory of measured data, or None if it does not exist.

    The environment variable ``JAXSERVE_SHARED`` names the directory; by default it is
    ``shared/data`` beside the source checkout.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    path = Path(named) if named else data_dir().parent.parent / "shared" / "data"
    return path if path.is_dir() else None
