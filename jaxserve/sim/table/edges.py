"""The rows at the edge of a load test: what a fit to the others says of them tells how it
extrapolates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.sim.table.sweep import Sweep

_SHARE = 1 / 3
"""of the different values of an axis, at least one."""
_FEWEST_LEFT = 4
"""rows from which the fit to the others must do."""


@dataclass(frozen=True)
class Edge:
    """The rows with the largest values of an axis."""

    axis: str
    """what is large in them."""
    largest_left: float
    """largest value of the other rows."""
    largest: float
    """largest value of all rows."""
    rows: NDArray[np.bool_]
    """bool[n]."""


@dataclass(frozen=True)
class Extrapolation:
    """How far off a fit is beyond the rows it was made of."""

    axis: str
    """what is larger there."""
    largest_left: float
    """largest value that the fit saw."""
    largest: float
    """largest value that it was asked for."""
    tpot_error: float
    """mean absolute relative error on TPOT."""
    worst_error: float
    """the farthest one, with its sign."""

    @classmethod
    def of(cls, edge: Edge, errors: NDArray[np.float64]) -> Extrapolation:
        """From the relative errors on the rows of an edge."""
        return cls(
            axis=edge.axis,
            largest_left=edge.largest_left,
            largest=edge.largest,
            tpot_error=float(np.abs(errors).mean()),
            worst_error=float(errors[np.abs(errors).argmax()]),
        )


def edges(sweep: Sweep) -> Iterator[Edge]:
    """Edges of a sweep; an axis without different values has none."""
    axes = {
        "requests in flight": sweep.concurrency,
        "tokens in a sequence": sweep.prompt_tokens + sweep.output_tokens,
    }
    for axis, values in axes.items():
        levels = np.unique(values)
        rows = values > levels[len(levels) - 1 - max(1, int(_SHARE * len(levels)))]
        if len(levels) > 1 and (~rows).sum() >= _FEWEST_LEFT:
            yield Edge(axis, float(values[~rows].max()), float(levels[-1]), rows)
