"""Promises of the comparison with measured collectives."""

import dataclasses

import numpy as np

from jaxserve.studies.fidelity.all_reduce import (
    AllReduceRows,
    fit,
    relative_errors,
    shipped_all_reduce,
)


def test_fit_recovers_the_constants() -> None:
    """Times of other constants are met by a fit to them."""
    gpus = np.repeat([2, 4, 8], 20)
    sizes = np.tile(2.0 ** np.arange(8, 28), 3)
    true = dataclasses.replace(shipped_all_reduce(), one_shot_s=6e-6, ring_bytes_per_s=250e9)
    seconds = np.array([true.seconds(int(n), float(b)) for n, b in zip(gpus, sizes, strict=True)])
    rows = AllReduceRows(gpus, sizes, seconds)
    assert np.abs(relative_errors(shipped_all_reduce(), rows)).mean() > 0.02
    assert np.abs(relative_errors(fit(rows), rows)).mean() < 0.01
