"""Comparisons of the simulators with measurements, and with each other."""

from jaxserve.fidelity.rows import FidelityRow
from jaxserve.fidelity.sources import shared_data

__all__ = ["FidelityRow", "shared_data"]
