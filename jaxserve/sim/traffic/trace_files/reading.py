"""Rows of a trace file: read block by block, checked, and the stated part of them kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.traffic.prompt_blocks import PromptBlocks, from_ids
from jaxserve.sim.traffic.request_kinds import number_kinds
from jaxserve.sim.traffic.trace_files.csv_rows import csv_rows, header_of
from jaxserve.sim.traffic.trace_files.formats import (
    FORMATS,
    LAYOUTS,
    MAX_TRACE_ROWS,
    TIME_UNITS,
    Layout,
    layout_of_header,
    layout_of_json,
)
from jaxserve.sim.traffic.trace_files.json_rows import json_rows
from jaxserve.sim.traffic.trace_files.part import WHOLE, Draw, TracePart, WholeFile
from jaxserve.sim.traffic.trace_files.rows import Rows
from jaxserve.sim.traffic.trace_files.text import Advance, TextBlock, text_blocks
from jaxserve.sim.traffic.trace_files.twins import TwinCheck
from jaxserve.sim.traffic.trace_files.units import check_clock, told_layout

MAX_BLOCK_IDS = 20_000_000
"""Most ids of prompts' blocks in a trace."""


@dataclass(frozen=True, eq=False)
class RecordedRows:
    """n requests of a file, in order of time."""

    time_s: NDArray[np.float64]
    """float64[n], seconds from an origin of the file's."""
    prompt: NDArray[np.int32]
    """int32[n], tokens, at least 1."""
    output: NDArray[np.int32]
    """int32[n], tokens, at least 1."""
    time_unit: str | None
    """unit in which the file's times were read; None for calendar times."""
    failed: int
    """rows of the part without tokens, which are left out."""
    whole: WholeFile | None
    """file of which they are a part; None where they are the whole file."""
    blocks: PromptBlocks | None
    """None where blocks have no names."""
    kinds: tuple[str, ...]
    """names of the kinds of requests, sorted."""
    kind: NDArray[np.int32] | None
    """index of each row's kind; None where rows have none."""


def read_rows(
    path: str | Path,
    format: str | None = None,
    time_unit: str | None = None,
    part: TracePart = WHOLE,
    advance: Advance | None = None,
) -> RecordedRows:
    """The requests of a trace file.

    Args:
      path: the file.
      format: one of ``FORMATS``, or None to tell from the file.
      time_unit: one of ``TIME_UNITS``, or None for that of the format.
      part: the part of the file that is kept. All of the file is read and checked.
      advance: told about the progress.

    Raises:
      InputError: the file cannot be read or is empty, has a bad row or rows that look alike, does
        not tell the unit of its times, or the part is empty or has more than ``MAX_TRACE_ROWS``
        rows; the message names file, line and column.
    """
    if format is not None:
        checks.one_of("format", format, FORMATS)
    if time_unit is not None:
        checks.one_of("time_unit", time_unit, tuple(TIME_UNITS))
    name = str(path)
    blocks = text_blocks(name, advance)
    first = next(blocks)
    layout = _layout(name, first) if format is None else LAYOUTS[format]
    if time_unit is not None:
        if layout.unit is None:
            raise InputError(f"{name} has calendar times, which have no time_unit; leave it out")
        layout = layout._replace(unit=time_unit)
    named = format is not None or time_unit is not None
    calendar = None
    if layout.block_tokens:
        rows, texts = json_rows(name, chain([first], blocks), layout)
        if layout.name == "mooncake" and not named:
            layout = told_layout(name, rows)
        batches = iter([rows])
    else:
        if layout.name == "timed_csv" and not named:
            raise InputError(f"{name} does not tell the unit of its times; name it (--time-unit s)")
        batches, texts, calendar = csv_rows(name, first, blocks, layout)
    reading = _Reading(name, layout, part, calendar)
    found: tuple[list[Any], ...] = ([], [], [], [], [])
    for rows in reading.kept(batches):
        for column, values in zip(found, (*rows[:3], rows.kind, rows.ids), strict=True):
            column.append(values)
    if layout.unit is not None and not named:
        check_clock(name, layout.unit, reading.requests, float(reading.first), reading.duration)
    names = texts.texts()
    time_s = _joined(found[0])
    if not len(time_s):
        raise InputError(_nothing(name, reading))
    prompt = _joined(found[1])
    kinds, kind = number_kinds(names, _joined(found[3])) if names else ((), None)
    ids = found[4][0]  # of JSON lines, which are one batch
    return RecordedRows(
        time_s=time_s,
        prompt=prompt,
        output=_joined(found[2]),
        time_unit=layout.unit,
        failed=reading.failed,
        whole=reading.whole(),
        blocks=None if ids is None else _prompt_blocks(name, ids, prompt, layout),
        kinds=kinds,
        kind=kind,
    )


def _nothing(name: str, reading: _Reading) -> str:
    """Why no request is left."""
    if not reading.requests:
        return f"{name} holds no request with tokens, only failed ones"
    options = " ".join(f"{option} {value}" for option, value in reading.part.stated.items())
    return (
        f"{name} has no request with tokens in the part {options}; it lasts "
        f"{reading.duration / reading.second:.6g} s from its first request to its last"
    )


def _prompt_blocks(
    name: str, ids: list[Any], prompt: NDArray[np.int32], layout: Layout
) -> PromptBlocks | None:
    """Blocks of prompts by their ids; None where they have none."""
    count = sum(map(len, ids))
    if count > MAX_BLOCK_IDS:
        raise InputError(
            f"{name} has {count:,} hash_ids, and at most {MAX_BLOCK_IDS:,} are compared; take a "
            "part of the file (--for 1h)"
        )
    return from_ids(ids, prompt, layout.block_tokens)


def _layout(name: str, first: TextBlock) -> Layout:
    if first.data.startswith((b"{", b"[")):
        return layout_of_json(name, first.data.split(b"\n", 1)[0])
    return layout_of_header(name, header_of(first))


@dataclass
class _Reading:
    """Counts of rows while a file is read."""

    name: str
    layout: Layout
    part: TracePart
    calendar: pa.TimestampType | None
    """type of calendar times."""
    first: float = 0.0
    """time of the first row, in the unit of ``Rows.time``."""
    begin: float | None = None
    """time of the first request."""
    end: float = 0.0
    """time of the last request."""
    rows: int = 0
    requests: int = 0
    failed: int = 0
    """failed rows in the part."""
    outside: int = 0
    """rows before or behind the part."""
    not_drawn: int = 0
    """rows in the part that are not in the sample."""

    @property
    def second(self) -> float:
        """Units of ``Rows.time`` in a second."""
        return self.layout.second if self.calendar is None else 1e9

    def kept(self, batches: Iterator[Rows]) -> Iterator[Rows]:
        """The requests of the part, of all rows of the file; with times in seconds."""
        twins, draw = TwinCheck(self.name, self.layout.unit is None), Draw(self.part)
        last, kept, span_s = None, 0, (0.0, np.inf)
        for rows in batches:
            self._check_order(rows, last)
            if last is None:
                self.first = rows.time[0]
                span_s = self.part.span_s(self.name, self.first, self.second, self.calendar)
            last = rows.time[-1]
            served = (rows.prompt > 0) & (rows.output > 0)
            twins.add(rows, served)
            self._count(rows, served)
            if self.calendar is None:
                time_s, after_s = rows.time / self.second, (rows.time - self.first) / self.second
            else:
                time_s = after_s = (rows.time - self.first) * 1e-9
            inside = (after_s >= span_s[0]) & (after_s < span_s[1])
            chosen = inside & draw.next(len(inside))
            self.outside += int((~inside).sum())
            self.not_drawn += int((inside & ~chosen).sum())
            self.failed += int((chosen & ~served).sum())
            chosen &= served
            kept += int(chosen.sum())
            if kept > MAX_TRACE_ROWS:
                raise InputError(
                    f"{self.name} has more than {MAX_TRACE_ROWS:,} requests; take a part of them "
                    "(--for 2h) or a share (--sample 0.1)"
                )
            yield rows._replace(time=time_s).chosen(chosen)
        twins.finish()

    def whole(self) -> WholeFile | None:
        """The file, when all of it is read; None where it is the part."""
        if not self.part.stated:
            return None
        left_out = {"outside": self.outside, "not_sampled": self.not_drawn}
        return WholeFile(self.part, self.rows, self.requests, self.duration / self.second, left_out)

    @property
    def duration(self) -> float:
        """Time from the first request to the last, in the unit of ``Rows.time``."""
        return 0.0 if self.begin is None else float(self.end - self.begin)

    def _count(self, rows: Rows, served: NDArray[np.bool_]) -> None:
        self.rows += len(served)
        self.requests += int(served.sum())
        if served.any():
            times = rows.time[served]
            self.begin = times[0] if self.begin is None else self.begin
            self.end = times[-1]

    def _check_order(self, rows: Rows, last: float | None) -> None:
        falls = np.flatnonzero(np.diff(rows.time) < 0)
        if last is not None and rows.time[0] < last:
            falls = np.array([-1])
        if len(falls):
            raise InputError(
                f"{self.name}, line {rows.first_line + falls[0] + 1}, column {self.layout.time}: "
                "earlier than the line before; sort the file by time"
            )


def _joined(columns: list[NDArray[Any]]) -> NDArray[Any]:
    """Columns of successive rows as one; the list is empty afterwards, to save memory."""
    joined = np.concatenate(columns)
    columns.clear()
    return joined
