"""Files of load tests as runs: quantities under the names that the file's own format has for them.

Read are CSV and parquet files with one row per run, and JSON: one object, a list, or one object per
line. ``jaxserve.file_formats`` declares where each format has its quantities.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.file_formats import NEEDED, FileFormat, file_formats, find, normal, recognise_as

MAX_ROWS = 10_000
MAX_FILE_BYTES = 256 * 2**20

_ASKED_AND_REACHED = ["max_concurrency", "concurrency"]
_TOTALS = {"prompt length": "all prompt tokens", "output length": "all output tokens"}
# Columns of several tools that say nothing about the cost of an iteration.
_IGNORED = re.compile(
    r"(mean|median|std|p\d+(\.\d+)?)_(ttft|tpot|itl|e2el)_ms"
    r"|(request|output|total_token|input|total)_(throughput|goodput)"
    r"|backend|backend_version|endpoint_type|version"
    r"|model_path|tokenizer_id|date|label|burstiness"
    r"|max_output_tokens_per_s|max_concurrent_requests|notes"
)


@dataclass(frozen=True)
class Runs:
    """Runs of one file."""

    format: FileFormat
    rows: Sequence[Mapping[str, Any]]
    """one object per run."""

    def __len__(self) -> int:
        return len(self.rows)

    def path(self, what: str) -> str | None:
        """Path of a quantity: the first of the format's that a run has; None where none has it.

        Raises:
          InputError: columns of several tools give the same setting.
        """
        present = [each for each in self.format.quantities.get(what, ()) if self.has(each)]
        setting = self.format.free and what in NEEDED[:3]
        if setting and len(present) > 1 and present != _ASKED_AND_REACHED:
            raise InputError(f"columns {' and '.join(present)} both give the {what}")
        return present[0] if present else None

    def has(self, path: str) -> bool:
        """Whether any run has a field under a path."""
        return any(find(row, path) is not checks.MISSING for row in self.rows)

    def cells(self, path: str) -> Iterator[tuple[int, Any]]:
        """Number (from 1) and value of the runs whose field says something."""
        for number, row in enumerate(self.rows, 1):
            value = find(row, path)
            if not _is_empty(value):
                yield number, value

    def values(
        self, what: str, low: float | None = 0.0, gaps: bool = False
    ) -> NDArray[np.float64] | None:
        """A quantity of all runs, float64[n], times in seconds; None where the file lacks it.

        Args:
          low: least value allowed; None for any above 0.
          gaps: whether a run may lack it, which is NaN then.

        Raises:
          InputError: a run lacks it, or has another value or unit; the message names run and field.
        """
        path = self.path(what)
        if path is None and what not in self.format.words:
            return None
        found = []
        for number, row in enumerate(self.rows, 1):
            word = self._word(what, row)
            where, value = f"row {number}, column {path}", find(row, path or "")
            if gaps and _is_empty(value):
                found.append(math.nan)
                continue
            value = to_number(where, value if word is None else word)
            _ = checks.positive(where, value) if low is None else checks.number(where, value, low)
            found.append(value * self.format.unit_s(what, row, path or "", f"row {number}"))
        return np.array(found)

    def counted(self, what: str) -> dict[int, float]:
        """A count by number of the run, for the runs that have it; of a run without any completed
        request nothing is known."""
        path = self.path(what)
        found = {}
        for number, value in () if path is None else self.cells(path):
            where = f"row {number}, column {path}"
            low = 1.0 if what == "completed" else 0.0
            found[number] = checks.number(where, to_number(where, value), low)
        return found

    def lengths(self, what: str, low: float) -> NDArray[np.float64] | None:
        """Mean lengths of prompts or outputs: what was counted comes before what was asked for."""
        requests = None if self.path(_TOTALS[what]) is None else self.values("completed", None)
        tokens = None if requests is None else self.values(_TOTALS[what])
        if requests is None or tokens is None:
            return self.values(what, low)
        found = tokens / requests
        for number, length in enumerate(found, 1):
            checks.number(f"row {number}, mean {what}", float(length), low)
        return found

    def _word(self, what: str, row: Mapping[str, Any]) -> float | None:
        for path, words in self.format.words.get(what, {}).items():
            value = find(row, path)
            if isinstance(value, str) and value in words:
                return words[value]
        return None


def read_runs(path: Path) -> Runs:
    """Reads the runs of a file, and recognises its format.

    Raises:
      InputError: unreadable, too large, without runs, of no format of load tests, or with a column
        that is unknown or appears twice.
    """
    if not path.is_file():
        raise InputError(f"sweep file {path} does not exist")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"sweep file {path} is larger than {MAX_FILE_BYTES // 2**20} MiB")
    readers = {
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".json": _read_json,
        ".jsonl": _read_json,
    }
    reader = readers[checks.ending("sweep file", path, *readers)]
    try:
        runs = reader(path)
        if len(runs) > MAX_ROWS:
            raise InputError(f"it has {len(runs)} rows; at most {MAX_ROWS} are allowed")
        return runs
    except InputError as error:
        raise InputError(f"sweep file {path}: {error}") from None


def to_number(where: str, value: Any) -> float:
    """A finite number from a field of a file."""
    if _is_empty(value):
        value = checks.MISSING
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            value = float(value)
    return checks.number(where, value)


def _is_empty(value: Any) -> bool:
    return (
        value is None or value is checks.MISSING or (isinstance(value, str) and not value.strip())
    )


def _read_csv(path: Path) -> Runs:
    """Runs of a CSV file with a header line."""
    try:
        lines = list(csv.reader(io.StringIO(_text(path))))
    except csv.Error as error:
        raise InputError(f"it is not a CSV file: {error}") from None
    rows = [line for line in lines[1:] if any(cell.strip() for cell in line)]
    names = lines[0] if lines else []
    found = _of_columns(names)
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise InputError(f"row {number} has {len(row)} values; the header has {len(names)}")
    header = [normal(name) for name in names]
    return Runs(found, [dict(zip(header, row, strict=True)) for row in rows])


def _read_parquet(path: Path) -> Runs:
    """Runs of a parquet file."""
    try:
        file = parquet.ParquetFile(path)
        if file.metadata.num_rows > MAX_ROWS:
            raise InputError(
                f"it has {file.metadata.num_rows} rows; at most {MAX_ROWS} are allowed"
            )
        table = file.read()
    except (pa.ArrowException, OSError):
        raise InputError("it is not a readable parquet file") from None
    found = _of_columns(table.column_names)
    return Runs(found, table.rename_columns([normal(n) for n in table.column_names]).to_pylist())


def _read_json(path: Path) -> Runs:
    """Runs of JSON objects; their many other fields are skipped."""
    text = _text(path)
    try:
        try:
            data = json.loads(text)
        except json.JSONDecodeError:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (json.JSONDecodeError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
        raise InputError(f"it is not valid JSON: {reason}") from None
    objects = data if isinstance(data, list) else [data]
    if not all(isinstance(each, Mapping) for each in objects):
        raise InputError("it must hold JSON objects, one per run")
    if not objects:
        raise InputError("it has no rows; a load test has one for each run")
    rows = [_normal_names(each) for each in objects]
    found = recognise_as(rows[0], "load test")
    if not found.rows:
        return Runs(found, rows)
    runs: list[Any] = []
    for number, each in enumerate(rows, 1):
        listed = find(each, found.rows)
        if not isinstance(listed, list) or not all(isinstance(run, Mapping) for run in listed):
            checks.refuse(f"object {number}: {found.rows}", listed, "a list of runs")
        runs += listed
    return Runs(found, runs)


def _normal_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with normal names, of which none may appear twice."""
    names = [normal(name) for name in row]
    for name in names if len(set(names)) < len(names) else ():
        if names.count(name) > 1:
            raise InputError(f"column {name!r} appears twice")
    return dict(zip(names, row.values(), strict=True))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError):
        raise InputError("it is not a UTF-8 text file") from None


def _of_columns(names: Sequence[str]) -> FileFormat:
    """Format of a table by its header.

    Raises:
      InputError: a column appears twice, or is unknown though no benchmark has written the file.
    """
    header = [normal(name) for name in names]
    if not header:
        raise InputError(f"it is empty; a load test looks like {_columns().example}")
    found = recognise_as(dict.fromkeys(header), "load test")
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"column {name!r} appears twice")
    counted = ["completed", *_TOTALS.values()]
    if not found.free or all({*header} & {*found.quantities[each]} for each in counted):
        return found
    unknown = [name for name in header if name not in _known() and not _IGNORED.fullmatch(name)]
    if unknown:
        listed = ", ".join(repr(name) for name in unknown)
        several = f"columns {listed} are" if len(unknown) > 1 else f"column {listed} is"
        quantities = _columns().quantities
        known = "; ".join(f"{what}: {', '.join(quantities[what])}" for what in (*NEEDED, "TTFT"))
        raise InputError(f"{several} unknown; known are {known}")
    return found


def _columns() -> FileFormat:
    return next(each for each in file_formats() if each.name == "columns")


def _known() -> set[str]:
    own = _columns()
    return {path for paths in own.quantities.values() for path in paths} | {
        *own.no_drafts,
        *own.same,
    }
