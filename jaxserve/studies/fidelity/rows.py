"""The row that every fidelity check returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FidelityRow:
    """One comparison of a simulator with a measurement."""

    check: str
    """what is compared with what."""
    measured: float
    """the error found, in ``unit``."""
    bar: float
    """largest error that passes, in ``unit``."""
    unit: str
    """unit of ``measured`` and ``bar``."""
    passed: bool
    """whether ``measured`` is within ``bar``."""
    detail: str
    """how many points, which rows, and what explains the remaining error."""

    @classmethod
    def within(
        cls, check: str, measured: float, bar: float, unit: str, detail: str
    ) -> "FidelityRow":
        """Row that passes if ``measured`` is at most ``bar``."""
        return cls(check, measured, bar, unit, bool(measured <= bar), detail)

    def __str__(self) -> str:
        """One line for a terminal."""
        return f"{self.check}: {self.measured:.3g} {self.unit}, bar {self.bar:g}; {self.detail}"
