"""The cost model against measured servers: many GPUs, FP8 and FP4 weights, experts.

The checks compare TPOT of closed loops (``served_loop``). Constants that no kernel shows
(``served_fit``) are fitted to two thirds of the rows and judged on the remaining third, three times
over. A harder test fits four fifths of the runs and judges the remaining fifth, so that the fit
never saw a row of a judged run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.served_fit import (
    Prediction,
    by_run,
    fitted_constants,
    held_out_errors,
)
from jaxserve.studies.fidelity.served_rows import DOUBTS, FILE, ServedRow, served_rows
from jaxserve.studies.fidelity.silicon_choice import choice_rows

_DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b")


def _is(formats: tuple[str, ...], gpus: tuple[int, ...]) -> Callable[[ServedRow], bool]:
    return lambda row: row.model in _DENSE and row.stack.formats[0] in formats and row.gpus in gpus


_CHECKS: tuple[tuple[str, float, Callable[[ServedRow], bool]], ...] = (
    ("TPOT bf16 TP2 and TP4", 6.0, _is(("bf16",), (2, 4))),
    ("TPOT bf16 TP8", 10.0, _is(("bf16",), (8,))),
    ("TPOT FP8 TP1 to TP4", 6.0, _is(("fp8",), (1, 2, 4))),
    ("TPOT FP8 TP8", 10.0, _is(("fp8",), (8,))),
    ("TPOT FP4 TP1 to TP8", 10.0, _is(("fp4",), (1, 2, 4, 8))),
    ("TPOT experts", 8.0, lambda row: row.model not in _DENSE),
    ("TPOT gpt-oss-120b", 8.0, lambda row: row.model == "gpt-oss-120b"),
    ("TPOT Qwen3-235B-A22B", 8.0, lambda row: row.model == "qwen3-235b-a22b"),
    ("TPOT DeepSeek V3 and R1", 8.0, lambda row: row.model == "deepseek-v3"),
)
"""Name, bar in percent, and rows of each check."""
_ALL, _ALL_BAR = "TPOT of all rows but the impossible ones", 7.5


@dataclass(frozen=True)
class _Errors:
    """Relative errors of TPOT, float64[rows]."""

    held_out: np.ndarray
    """errors under constants fitted without the row's third."""
    without_run: np.ndarray
    """errors under constants fitted without the row's fifth of the runs."""
    as_shipped: np.ndarray
    """errors under the shipped constants."""
    through_table: np.ndarray
    """errors of the shipped constants in the closed loop that fills latency tables."""


def served_fidelity(directory: Path) -> list[FidelityRow]:
    """Rows on TPOT of measured servers; none if the file is absent."""
    if not (directory / FILE).is_file():
        return []
    rows, doubtful, left_out = served_rows(directory)
    everything = [*rows, *doubtful]
    prediction = Prediction(everything, fitted_constants(rows))
    measured_s = np.array([row.tpot_s for row in everything])
    errors = _Errors(
        held_out=held_out_errors(rows, everything),
        without_run=held_out_errors(rows, everything, by_run),
        as_shipped=prediction.tpot_s(prediction.start()) / measured_s - 1,
        through_table=prediction.through_table_s() / measured_s - 1,
    )
    kept = np.array([row not in doubtful for row in everything])
    result = []
    for name, bar, chosen in _CHECKS:
        group = np.array([chosen(row) for row in everything])
        mask = group & kept
        if mask.any():
            why = Counter(doubtful[row] for row in doubtful if chosen(row))
            detail = f"; {_counts(why)} left out" if why else ""
            detail += f", with them {_mean(errors.held_out[group]):.1f} %" if why else ""
            result.append(_judged(name, bar, everything, errors, mask, detail))
    detail = f"; of the file's rows left out: {_counts(left_out, DOUBTS)}" if left_out else ""
    result.append(_judged(_ALL, _ALL_BAR, everything, errors, np.ones_like(kept), detail))
    found = (errors.held_out, errors.as_shipped, errors.through_table)
    times_s = [((1 + each) * measured_s)[kept] for each in found]
    return [*result, *choice_rows([row for row in everything if row not in doubtful], *times_s)]


def _judged(
    name: str,
    bar: float,
    rows: Sequence[ServedRow],
    errors: _Errors,
    mask: np.ndarray,
    detail: str,
) -> FidelityRow:
    found, runs = errors.held_out[mask], {r.run for r, here in zip(rows, mask, strict=True) if here}
    about = (
        f"{mask.sum()} rows of {len(runs)} runs, held out by thirds; median "
        f"{100 * np.median(np.abs(found)):.1f} %, bias {100 * found.mean():+.1f} %; whole "
        f"runs held out {_mean(errors.without_run[mask]):.1f} %; shipped constants "
        f"{_mean(errors.as_shipped[mask]):.1f} %, through the table's closed loop "
        f"{_mean(errors.through_table[mask]):.1f} %"
    )
    return FidelityRow.within(
        f"cost model vs servers: {name}", _mean(found), bar, "% (mean)", about + detail
    )


def _mean(errors: np.ndarray) -> float:
    return 100 * float(np.abs(errors).mean())


def _counts(why: Counter[str], without: tuple[str, ...] = ()) -> str:
    return ", ".join(f"{n} {rule}" for rule, n in sorted(why.items()) if rule not in without)
