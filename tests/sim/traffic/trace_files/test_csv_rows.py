"""Cells that pyarrow converts by itself are those that are checked one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files.csv_rows import _Parser
from jaxserve.sim.traffic.trace_files.formats import LAYOUTS
from jaxserve.sim.traffic.trace_files.text import TextBlock

_NUMBERS = [
    "0",
    "7",
    "007",
    " 12 ",
    "3.0",
    "3.5",
    "",
    "-0",
    "-3",
    "+4",
    "1e3",
    "0x1F",
    "nan",
    "inf",
]
_TIMES = ["2024-02-29 23:59:59.123456", "2024-02-29T23:59:59", "2024-02-29", "", "2024-02-30 00:00"]
_CELLS = st.sampled_from([*_NUMBERS, "NULL", "NA", '"5"', "12345678", "123456789", "x", " "])


def _found(layout: str, calendar: pa.TimestampType | None, data: bytes, by_cell: bool) -> Any:
    parser = _Parser("file.csv", LAYOUTS[layout], 3, (0, 1, 2), calendar)
    with pytest.MonkeyPatch.context() as patched:
        if by_cell:
            patched.setattr(_Parser, "_converted", lambda self, block: None)
        try:
            rows, _ = parser.parse(TextBlock(data, 2))
        except InputError as error:
            return str(error)
    return [np.asarray(each).tolist() for each in rows[:3]]


@given(st.lists(st.tuples(st.sampled_from(_NUMBERS), _CELLS, _CELLS), min_size=1, max_size=6))
@example([("+4", "0", "0")])
def test_numbers_are_read_as_cell_by_cell(rows: list[tuple[str, ...]]) -> None:
    """The same rows, or the same sentence."""
    data = "\n".join(map(",".join, rows)).encode()
    assert _found("timed_csv", None, data, False) == _found("timed_csv", None, data, True)


@pytest.mark.parametrize("calendar", [pa.timestamp("ns"), pa.timestamp("ns", "UTC")])
@given(st.lists(st.tuples(st.sampled_from(_TIMES), _CELLS, _CELLS), min_size=1, max_size=6))
def test_calendar_times_are_read_as_cell_by_cell(
    calendar: pa.TimestampType, rows: list[tuple[str, ...]]
) -> None:
    zone = "" if calendar.tz is None else "+02:00"
    data = "\n".join(",".join((time + zone, *cells)) for time, *cells in rows).encode()
    assert _found("azure", calendar, data, False) == _found("azure", calendar, data, True)
