"""Whether a load test can be what its columns say: units, swapped columns, rows without variety.

Every check compares the rows with what the prior predicts of them. The prior may be another GPU, so
a common factor says nothing; only one that no GPU explains, or a pattern, does.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.sim.fit.sweep import MIN_ROWS, Sweep
from jaxserve.sim.table.closed_loop import ClosedLoop

Array = NDArray[np.float64]
Predict = Callable[[Sweep], ClosedLoop]

MIN_CONCURRENCIES = 3
"""Fewer say nothing of how a batch adds to an iteration."""
_OTHER_UNIT = 50.0
"""No GPU is this many times as fast or slow as another that runs the same model."""
_OTHER_ROW = 20.0
"""Times the usual distance from the prior, for a single row."""
_WAITING = 1000.0
"""Times the prior's TTFT that a wait for a slot may take."""
_MAX_ROWS_SHARE = 0.5
_TTFT_BELOW_TPOT = 0.7
_BETTER = 0.5
"""Share of the distance that is left after swapping, for columns to count as swapped."""
_FAR = 0.15
"""Mean distance (log) from the prior's pattern below which columns do not count as
swapped."""
_SETTINGS = {
    "concurrency": "concurrency",
    "prompt_tokens": "prompt length",
    "output_tokens": "output length",
}
_UNITS = "times must be in milliseconds, for the model, the GPUs and the tier that are named"


def check_plausible(sweep: Sweep, predict: Predict) -> None:
    """Refuses rows that no engine can have given, or that say too little.

    Args:
      sweep: the rows.
      predict: what the prior says of rows.

    Raises:
      InputError: says what is wrong with which rows or columns.
    """
    _check_variety(sweep)
    _check_swapped_times(sweep)
    loop = predict(sweep)
    ratios = {"TPOT": (sweep.tpot_s / loop.tpot_s, _OTHER_UNIT)}
    if sweep.ttft_s is not None:
        ratios["TTFT"] = (sweep.ttft_s / loop.ttft_p50_s, _WAITING)
    for name, (ratio, most) in ratios.items():
        check_unit(f"its {name}", ratio, _UNITS, most)
    _check_swapped_settings(sweep, predict)
    for name, (ratio, most) in ratios.items():
        _check_single_rows(name, ratio, most)


def _check_variety(sweep: Sweep) -> None:
    settings = np.stack([getattr(sweep, name) for name in _SETTINGS], axis=1)
    different = len(np.unique(settings, axis=0))
    if different < MIN_ROWS:
        raise InputError(
            f"its {len(sweep)} rows have {different} different settings; at least {MIN_ROWS} are "
            "needed"
        )
    levels = len(np.unique(sweep.concurrency))
    if levels < MIN_CONCURRENCIES:
        raise InputError(
            f"its rows have {levels} different concurrencies; at least {MIN_CONCURRENCIES} are "
            "needed"
        )


def _check_swapped_times(sweep: Sweep) -> None:
    """A first token takes an iteration or more, like every other."""
    if sweep.ttft_s is None:
        return
    below = sweep.ttft_s < _TTFT_BELOW_TPOT * sweep.tpot_s
    if below.mean() > _MAX_ROWS_SHARE:
        raise InputError(
            f"in {int(below.sum())} of {len(sweep)} rows TTFT is far below TPOT; the two columns "
            "are swapped, or in different units"
        )


def check_unit(name: str, ratio: Array, units: str, most: float = _OTHER_UNIT) -> None:
    """Refuses times in another unit.

    Args:
      name: what the times are of.
      ratio: measured to predicted times, float64[n].
      units: ends the error.
      most: times the prediction that is allowed.

    Raises:
      InputError: the usual ratio is none of another GPU.
    """
    usual = float(np.median(ratio))
    if not 1 / _OTHER_UNIT <= usual <= most:
        raise InputError(f"{name} is {usual:.2g} times what is expected; {units}")


def _check_single_rows(name: str, ratio: Array, most: float) -> None:
    """Rows in another unit than the others."""
    usual = float(np.median(ratio))
    distance = np.maximum(ratio / usual, usual / ratio)
    row = int(distance.argmax())
    slow = ratio[row] > usual
    if distance[row] > (most if slow else _OTHER_ROW):
        raise InputError(
            f"row {row + 1} has {ratio[row]:.2g} times the {name} that is expected, the others "
            f"{usual:.2g} times; {_UNITS}"
        )


def _check_swapped_settings(sweep: Sweep, predict: Predict) -> None:
    """The pattern of the rows is compared with the prior's, as given and with two swapped."""
    given = _distance(sweep, predict)
    if given < _FAR:
        return
    for one, other in itertools.combinations(_SETTINGS, 2):
        swapped = dataclasses.replace(
            sweep,
            **{one: getattr(sweep, other), other: getattr(sweep, one)},
        )
        if swapped.output_tokens.min() < 2:  # no output has a time per token then
            continue
        if _distance(swapped, predict) < _BETTER * given:
            raise InputError(
                f"its rows fit far better with {_SETTINGS[one]} and {_SETTINGS[other]} swapped; "
                "look at the names of the columns"
            )


def _distance(sweep: Sweep, predict: Predict) -> float:
    """Mean distance (log) of the rows from a common factor on the prior's times."""
    loop = predict(sweep)
    logs = [np.log(sweep.tpot_s / loop.tpot_s)]
    if sweep.ttft_s is not None:
        logs.append(np.log(sweep.ttft_s / loop.ttft_p50_s))
    return sum(float(np.abs(each - np.median(each)).mean()) for each in logs)
