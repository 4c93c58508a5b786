"""Rows of a file that look exactly alike.

Rows that look alike are refused in files of calendar times if there are more of them than chance
explains: the clocks of the published files tick every 100 ns or every microsecond, so hardly any
two requests share a time. The other clocks are coarse (a published Mooncake trace has equal rows,
BurstGPT counts whole seconds), so there equal rows are requests of their own, unless every single
row has a twin, as when a file was pasted into itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files.rows import Rows

_CHANCE = 3.0
"""Twins for each that chance explains, from which they are none of chance."""
_RARE = 1e-3
"""Share of twins that is always let through."""


class TwinCheck:
    """Counts twins in successive rows, which are in order of time."""

    def __init__(self, name: str, calendar: bool) -> None:
        """A check that has seen no row.

        Args:
          name: of the file.
          calendar: whether its times are calendar times.
        """
        self._name, self._calendar = name, calendar
        self._held: list[NDArray[np.int64]] = []
        self._rows = self._twins = self._shared = self._apart = self._alike = 0
        self._all = True
        self._first_line = 0

    def add(self, rows: Rows, served: NDArray[np.bool_]) -> None:
        """Looks at the rows for which ``served``, bool[n], is true."""
        if not (self._calendar or self._all):
            return
        line = rows.first_line + np.flatnonzero(served)
        kind = np.zeros(len(line), np.int32) if rows.kind is None else rows.kind[served]
        columns = [rows.time[served], rows.prompt[served], rows.output[served], kind, line]
        if self._held:
            columns = [np.concatenate(pair) for pair in zip(self._held, columns, strict=True)]
        # Rows of the last time may have twins among the next rows.
        ended = int(np.searchsorted(columns[0], columns[0][-1])) if len(columns[0]) else 0
        self._held = [column[ended:] for column in columns]
        self._look([column[:ended] for column in columns])

    def finish(self) -> None:
        """Looks at what is left.

        Raises:
          InputError: the file has rows that look exactly alike.
        """
        if self._held:
            self._look(self._held)
        by_chance = self._shared * self._alike / max(self._apart, 1)
        refused = self._twins > _CHANCE * by_chance + _RARE * self._rows
        if self._twins and (refused if self._calendar else self._all):
            where = f"{self._name}, line {self._first_line}"
            raise InputError(f"{where}: the same row as one before it")

    def _look(self, columns: list[NDArray[np.int64]]) -> None:
        time, *tokens, _ = columns
        if not len(time):
            return
        same_time = np.diff(time) == 0
        alike = np.all([np.diff(each) == 0 for each in tokens], axis=0)
        self._rows += len(time)
        self._shared += int(same_time.sum())
        self._apart += int((~same_time).sum())
        self._alike += int((alike & ~same_time).sum())
        grouped = np.append(False, same_time) | np.append(same_time, False)
        time, *tokens, line = (column[grouped] for column in columns)
        order = np.lexsort((*tokens[::-1], time))
        equal = np.all([np.diff(each[order]) == 0 for each in (time, *tokens)], axis=0)
        twin_of_previous = np.append(False, equal) if len(line) else equal
        with_twin = twin_of_previous | np.append(twin_of_previous[1:], False)
        self._all &= int(with_twin.sum()) == len(grouped)
        if twin_of_previous.any() and not self._twins:
            self._first_line = int(line[order[twin_of_previous]].min())
        self._twins += int(twin_of_previous.sum())
