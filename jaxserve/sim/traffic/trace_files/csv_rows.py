"""Rows of the CSV formats, block by block on two cores."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.arrays.convert import numpy_of
from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files.formats import KIND, MAX_TOKENS, Layout
from jaxserve.sim.traffic.trace_files.rows import KindTexts, Rows
from jaxserve.sim.traffic.trace_files.text import TextBlock

_THREADS = 2
_AHEAD = 3
"""Blocks that are parsed or wait to be fetched, at most."""


def header_of(block: TextBlock) -> list[str]:
    """Names of the columns in the first line of a file, trimmed."""
    line = block.data.split(b"\n", 1)[0].decode("utf-8").rstrip("\r")
    return [column.strip() for column in next(csv.reader([line]), [])]


def csv_rows(
    name: str, first: TextBlock, blocks: Iterator[TextBlock], layout: Layout
) -> tuple[Iterator[Rows], KindTexts, pa.TimestampType | None]:
    """The rows of a CSV file, the texts of its kinds, which are complete after the last row, and
    the type of calendar times, None for a clock that counts.

    Args:
      name: path of the file.
      first: its first block.
      blocks: the others.
      layout: of its columns.

    Raises:
      InputError: a column is missing or appears twice, there are no rows, or a cell is wrong; the
        message names file, line and column.
    """
    header = header_of(first)
    for column in layout.columns:
        if header.count(column) != 1:
            problem = "is missing" if column not in header else "appears twice"
            raise InputError(
                f"{name}, line 1: column {column!r} {problem}; the {layout.name} format has "
                f"{', '.join(layout.columns)}"
            )
    kind_columns = [column for column in header if column.casefold() == KIND]
    if len(kind_columns) > 1:
        raise InputError(f"{name}, line 1: column {KIND!r} appears twice; a row has one kind")
    texts = KindTexts(name, *(kind_columns or [KIND]))
    used = tuple(header.index(column) for column in (*layout.columns, *kind_columns))
    body = TextBlock(first.data.partition(b"\n")[2], 2)
    if not body.data:
        body = next(blocks, None)
    if body is None:
        raise InputError(f"{name} has a header but no rows")
    calendar = _calendar(body, used[0]) if layout.unit is None else None
    parser = _Parser(name, layout, len(header), used, calendar)
    return _rows(parser, chain([body], blocks), texts), texts, calendar


def _calendar(body: TextBlock, place: int) -> pa.TimestampType:
    """Type of calendar times that are written as in the first row: with a UTC offset or without."""
    cells = next(csv.reader([body.data.split(b"\n", 1)[0].decode("utf-8")]), [])
    first = cells[place].strip() if len(cells) > place else ""
    has_offset = first[19:].strip("0123456789.") != ""
    return pa.timestamp("ns", "UTC") if has_offset else pa.timestamp("ns")


def _rows(parser: _Parser, blocks: Iterator[TextBlock], texts: KindTexts) -> Iterator[Rows]:
    with ThreadPoolExecutor(_THREADS) as pool:
        for rows, kinds in _in_order(pool, parser, blocks):
            kind = None if rows.kind is None else texts.places(kinds, rows.kind, rows.first_line)
            yield rows._replace(kind=kind)


_Parsed = tuple[Rows, list[str]]
"""Rows, and the texts of their kinds, of which ``Rows.kind`` holds the places."""


def _in_order(
    pool: ThreadPoolExecutor, parser: _Parser, blocks: Iterator[TextBlock]
) -> Iterator[_Parsed]:
    """Blocks parsed side by side, of which only a few are in memory at a time."""
    waiting: deque[Future[_Parsed]] = deque()
    for block in blocks:
        waiting.append(pool.submit(parser.parse, block))
        if len(waiting) == _AHEAD:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


@dataclass(frozen=True)
class _Parser:
    """Cells of a CSV file to numbers."""

    name: str
    layout: Layout
    columns: int
    """columns of the file."""
    used: tuple[int, ...]
    """places of time, prompt, output and perhaps kind among them."""
    calendar: pa.TimestampType | None
    """type of calendar times; None for a clock that counts."""

    def parse(self, block: TextBlock) -> _Parsed:
        """The rows of a block, with the texts of their kinds."""
        rows = self._converted(block)
        if rows is not None:
            return rows, []
        time, prompt, output, *kind_cells = self._cells(block)
        line = block.first_line
        rows = Rows(
            self._times(time, line),
            self._tokens(self.layout.prompt, prompt, line),
            self._tokens(self.layout.output, output, line),
            line,
        )
        if not kind_cells:
            return rows, []
        encoded = pc.call_function("dictionary_encode", kind_cells)
        return rows._replace(kind=numpy_of(encoded.indices)), encoded.dictionary.to_pylist()

    def _converted(self, block: TextBlock) -> Rows | None:
        """The rows of a block without kinds, converted by pyarrow while it splits the lines, in a
        third of the time; None where a cell is not as usual."""
        unusual = b"x" in block.data or (self.calendar is None and b"-" in block.data)
        if len(self.used) > 3 or unusual:  # pyarrow reads 0x1F, and -0 is not below 0
            return None
        types = (self.calendar or pa.float64(), pa.int32(), pa.int32())
        try:
            table = self._table(block, types, None)
        except pa.ArrowInvalid:
            return None
        time, prompt, output = (table[column].combine_chunks() for column in table.column_names)
        if self.calendar is not None:
            time = time.cast(pa.int64())
        time, prompt, output = (numpy_of(column) for column in (time, prompt, output))
        usual = self.calendar is not None or bool(np.isfinite(time).all())
        for tokens in (prompt, output):
            usual = usual and tokens.min() >= 0 and tokens.max() <= MAX_TOKENS
        return Rows(time, prompt, output, block.first_line) if usual else None

    def _cells(self, block: TextBlock) -> list[pa.StringArray]:
        """The texts of the used columns, trimmed."""
        # pyarrow swallows what a handler raises, so the message waits for it to give up by itself.
        wrong_rows: list[str] = []

        def note_row(row: pyarrow.csv.InvalidRow) -> str:
            wrong_rows.append(
                f"line {block.first_line + row.number - 1}: {row.actual_columns} cells, but the "
                f"header has {row.expected_columns}"
            )
            return "error"

        try:
            table = self._table(block, [pa.string()] * len(self.used), note_row)
        except pa.ArrowInvalid as error:
            problem = (
                wrong_rows[0]
                if wrong_rows
                else f"line {block.first_line} or later: not a CSV table: "
                f"{str(error).splitlines()[0]}"
            )
            raise InputError(f"{self.name}, {problem}") from None
        return [
            pc.call_function("utf8_trim_whitespace", [table[column].combine_chunks()])
            for column in table.column_names
        ]

    def _table(
        self,
        block: TextBlock,
        types: Sequence[pa.DataType],
        note_row: Callable[[pyarrow.csv.InvalidRow], str] | None,
    ) -> pa.Table:
        """The used columns, each of its type; ``note_row`` is told of each row with too few or too
        many cells."""
        # Columns are found by position, so that unused ones may have any name.
        names = [str(place) for place in range(self.columns)]
        used = [names[place] for place in self.used]
        return pyarrow.csv.read_csv(
            pa.BufferReader(block.data),
            # One thread: only then does pyarrow know the line of a row with too few cells.
            read_options=pyarrow.csv.ReadOptions(use_threads=False, column_names=names),
            parse_options=pyarrow.csv.ParseOptions(
                ignore_empty_lines=False, invalid_row_handler=note_row
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict(zip(used, types, strict=True)),
                include_columns=used,
                null_values=[],
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )

    def _tokens(self, column: str, cells: pa.StringArray, line: int) -> NDArray[np.int32]:
        values = _numbers(cells, r"^[0-9]{1,8}(\.0*)?$")
        rule = f"a whole number from 0 to {MAX_TOKENS}"
        self._check(column, cells, values <= MAX_TOKENS, rule, line)
        return values.astype(np.int32)

    def _times(self, cells: pa.StringArray, line: int) -> NDArray[Any]:
        if self.calendar is None:
            values = _numbers(cells, r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")
            rule = "a finite number from 0 on"
            self._check(self.layout.time, cells, np.isfinite(values), rule, line)
            return values
        try:
            return numpy_of(cells.cast(self.calendar).cast(pa.int64()))
        except pa.ArrowInvalid:
            good = np.array([_is_time(cell, self.calendar) for cell in cells])
            rule = "a time like 2023-11-16 18:17:03.9799600"
            rule += " with a UTC offset, like the first row" if self.calendar.tz else ""
            self._check(self.layout.time, cells, good, rule, line)
            raise

    def _check(
        self,
        column: str,
        cells: pa.StringArray,
        good: NDArray[np.bool_],
        allowed: str,
        first_line: int,
    ) -> None:
        if not good.all():
            wrong = int(np.argmin(good))
            where = f"{self.name}, line {first_line + wrong}, column {column}"
            checks.refuse(where, str(cells[wrong]), allowed)


def _numbers(cells: pa.StringArray, pattern: str) -> NDArray[np.float64]:
    """The cells as numbers, NaN where a cell does not match ``pattern``."""
    options = pc.MatchSubstringOptions(pattern)
    matches = pc.call_function("match_substring_regex", [cells], options)
    numbers = np.full(len(cells), np.nan)
    good = numpy_of(matches.cast(pa.uint8())) == 1
    numbers[good] = numpy_of(cells.filter(matches).cast(pa.float64()))
    return numbers


def _is_time(cell: pa.StringScalar, kind: pa.DataType) -> bool:
    try:
        return cell.cast(kind) is not None
    except pa.ArrowInvalid:
        return False
