"""Extrapolation of a fit: its errors on the rows at the edge of the measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SHARE = 1 / 3
"""Share of the different values of an axis that are its edge, at least one value."""
_MIN_LEFT = 4
"""rows from which the fit to the others must do."""


@dataclass(frozen=True)
class Edge:
    """The rows with the largest values of an axis."""

    axis: str
    """quantity that is large in these rows."""
    largest_left: float
    """largest value of the other rows."""
    largest: float
    """largest value of all rows."""
    rows: NDArray[np.bool_]
    """bool[n]."""


@dataclass(frozen=True)
class Extrapolation:
    """Error of a fit on rows beyond those that it was fitted to."""

    axis: str
    """quantity that is larger in the rows beyond."""
    largest_left: float
    """largest value that the fit saw."""
    largest: float
    """largest value that it was asked for."""
    error: float
    """mean absolute relative error."""
    worst_error: float
    """the farthest one, with its sign."""

    @classmethod
    def of(cls, edge: Edge, errors: NDArray[np.float64]) -> Extrapolation:
        """Extrapolation of a fit from its relative errors on the rows of an edge."""
        return cls(
            axis=edge.axis,
            largest_left=edge.largest_left,
            largest=edge.largest,
            error=float(np.abs(errors).mean()),
            worst_error=float(errors[np.abs(errors).argmax()]),
        )


def edges(axes: Mapping[str, NDArray[np.float64]]) -> Iterator[Edge]:
    """Edges of rows; an axis without different values has none.

    Args:
      axes: by its name, what each row has on an axis, float64[n].
    """
    for axis, values in axes.items():
        levels = np.unique(values)
        rows = values > levels[len(levels) - 1 - max(1, int(_SHARE * len(levels)))]
        if len(levels) > 1 and (~rows).sum() >= _MIN_LEFT:
            yield Edge(axis, float(values[~rows].max()), float(levels[-1]), rows)
