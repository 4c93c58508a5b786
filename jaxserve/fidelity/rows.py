"""The row that every fidelity check returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FidelityRow:
    """One comparison of a simulator with a measurement.

    Attributes:
      check: what is compared with what.
      measured: the error found, in `unit`.
      bar: largest error that passes, in `unit`.
      unit: unit of `measured` and `bar`.
      passed: whether `measured` is within `bar`.
      detail: how many points, which rows, and what explains the remaining error.
    """

    check: str
    measured: float
    bar: float
    unit: str
    passed: bool
    detail: str

    @classmethod
    def within(
        cls, check: str, measured: float, bar: float, unit: str, detail: str
    ) -> "FidelityRow":
        """Row that passes if `measured` is at most `bar`."""
        return cls(check, measured, bar, unit, bool(measured <= bar), detail)

    def __str__(self) -> str:
        """One line for a terminal."""
        return f"{self.check}: {self.measured:.3g} {self.unit}, bar {self.bar:g}; {self.detail}"
