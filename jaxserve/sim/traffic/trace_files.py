"""Files of recorded requests, and the rows in them.

Four public formats are read, as they are or compressed with gzip:

- ``azure``: CSV of the Azure LLM inference traces, columns TIMESTAMP (date and time, up to nine
  fractional digits, with or without a UTC offset), ContextTokens, GeneratedTokens.
- ``mooncake``: JSON lines {"timestamp": ms, "input_length": ..., "output_length": ...}, and perhaps
  "hash_ids" of the blocks of 512 tokens that the prompt consists of.
- ``bailian``: the same with "chat_id", a timestamp in seconds, and blocks of 16 tokens.
- ``timed``: the same in seconds without "chat_id", as GuideLLM's ``trace_synthetic`` and the
  ``timed_trace`` of ``vllm bench serve`` are. The file looks like Mooncake's, so the unit has to be
  named where the file does not tell it: blocks of 16 tokens are of this format, and so are more
  than 1,000 requests per second if times were in milliseconds.
- ``burstgpt``: CSV of BurstGPT, columns Timestamp (seconds), Request tokens, Response tokens.

A column of a CSV file named kind, in any case, or a field "kind" of JSON lines says which kind of
request a row is of: a text for every row, or for none. Rows must be in order of time.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.arrays.convert import numpy_of
from jaxserve.errors import InputError
from jaxserve.sim.traffic.prompt_blocks import PromptBlocks, from_ids
from jaxserve.sim.traffic.request_kinds import KIND_RULE, is_kind, number_kinds

MAX_TRACE_BYTES = 256 * 2**20
MAX_TRACE_ROWS = 6_000_000
MAX_TOKENS = 10_000_000
"""Most tokens that a prompt or an output may have."""
_GZIP = b"\x1f\x8b"
_KIND = "kind"


class Layout(NamedTuple):
    """Names of the columns, and what the file's clock and zeros mean."""

    time: str
    prompt: str
    output: str
    fine_clock: bool
    zero_is_failure: bool
    second: float = 1.0
    """second of the clock."""
    block_tokens: int = 0
    """prompt tokens that a hash id stands for."""


_FORMATS = {
    "azure": Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens", True, False),
    "mooncake": Layout("timestamp", "input_length", "output_length", False, False, 1e3, 512),
    "bailian": Layout("timestamp", "input_length", "output_length", False, False, 1.0, 16),
    "timed": Layout("timestamp", "input_length", "output_length", False, False, 1.0, 16),
    "burstgpt": Layout("Timestamp", "Request tokens", "Response tokens", False, True),
}

FORMATS = tuple(_FORMATS)
"""Names that ``read_rows`` takes as ``format``."""
TIME_UNITS = {"s": 1.0, "ms": 1e3}
"""Units of a file's times, and how many of them are a second."""
_MOST_RPS = 1000.0
"""More requests per second than any deployment that a trace was recorded of has."""
_FEWEST_TO_TELL = 10
"""Requests from which their rate tells the unit of time."""


class Rows(NamedTuple):
    """Rows of a parsed file: one entry a row, and the line of the file each stood on."""

    time_s: NDArray[np.float64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    line: NDArray[np.int64]
    blocks: PromptBlocks | None = None
    """None where blocks have no names."""
    kinds: tuple[str, ...] = ()
    """names of the kinds of requests, sorted."""
    kind: NDArray[np.int32] | None = None
    """index of each row's kind; None where rows have none."""


_Kinds = tuple[tuple[str, ...], NDArray[np.int32] | None]
"""``kinds`` and ``kind`` of ``Rows``."""


def read_rows(
    path: str | Path, format: str | None = None, time_unit: str | None = None
) -> tuple[Rows, Layout]:
    """Every row of a trace file, and what its columns mean.

    Args:
      path: the file.
      format: one of ``FORMATS``, or None to tell from the file.
      time_unit: one of ``TIME_UNITS``, or None for that of the format.

    Raises:
      InputError: the file cannot be read, is empty, is larger than ``MAX_TRACE_BYTES`` or
        ``MAX_TRACE_ROWS``, has a bad row, or does not tell the unit of its times; the message names
        file, line and column.
    """
    if format is not None:
        checks.one_of("format", format, FORMATS)
    if time_unit is not None:
        checks.one_of("time_unit", time_unit, tuple(TIME_UNITS))
    name = str(path)
    data = _read_text(name)
    found = format or _detect(name, data)
    layout = _FORMATS[found]
    if time_unit is not None:
        if found == "azure":
            raise InputError(f"{name} has calendar times, which have no time_unit; leave it out")
        layout = layout._replace(second=TIME_UNITS[time_unit])
    if layout.block_tokens:
        known = format is not None or time_unit is not None
        rows, layout = _parse_jsonl(name, data, layout, known)
    else:
        rows = _parse_csv(name, data, layout, found)
    if len(rows.line) > MAX_TRACE_ROWS:
        raise InputError(f"{name} has {len(rows.line):,} rows; at most {MAX_TRACE_ROWS:,} are read")
    _check_order(name, rows, layout)
    return rows, layout


def _read_text(name: str) -> bytes:
    """The file's bytes, known to be UTF-8 text, without byte order mark and trailing space."""
    try:
        size = os.stat(name).st_size
        if size > MAX_TRACE_BYTES:
            raise InputError(
                f"{name} has {size:,} bytes; at most {MAX_TRACE_BYTES:,} are read, so cut it first"
            )
        data = Path(name).read_bytes()
        if data.startswith(_GZIP):
            data = _decompressed(name)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"{name}, line {line}: not UTF-8 text") from None
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        raise InputError(f"{name}, line {line}: a zero byte, so this is not a text file")
    data = data.removeprefix(b"\xef\xbb\xbf").rstrip()
    if not data:
        raise InputError(f"{name} is empty")
    return data


def _decompressed(name: str) -> bytes:
    try:
        with gzip.open(name) as file:
            data = file.read(MAX_TRACE_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InputError(f"{name} is a gzip file that is damaged") from None
    if len(data) > MAX_TRACE_BYTES:
        raise InputError(
            f"{name} has more than {MAX_TRACE_BYTES:,} bytes when decompressed; cut it first"
        )
    return data


def _header(data: bytes) -> list[str]:
    line = data.split(b"\n", 1)[0].decode("utf-8").rstrip("\r")
    return [column.strip() for column in next(csv.reader([line]), [])]


def _detect(name: str, data: bytes) -> str:
    """The format whose column names the first line shares most."""
    if data.startswith((b"{", b"[")):
        return _detect_json(name, data)
    header = set(_header(data))
    matches = {key: len(header.intersection(_FORMATS[key][:3])) for key in ("azure", "burstgpt")}
    best = max(matches, key=lambda key: matches[key])
    if matches[best] == 0:
        columns = "; ".join(f"{key}: {', '.join(_FORMATS[key][:3])}" for key in matches)
        raise InputError(
            f"{name}, line 1: neither a JSON object nor a header with known columns ({columns})"
        )
    return best


def _detect_json(name: str, data: bytes) -> str:
    try:
        row = json.loads(data.split(b"\n", 1)[0])
    except (ValueError, RecursionError):
        return "mooncake"  # the line's own error is the message
    fields = sorted(row) if isinstance(row, dict) else []
    wanted = _FORMATS["mooncake"][:3]
    if not set(wanted) & set(fields):
        has = ", ".join(fields[:12]) if fields else "no fields"
        raise InputError(
            f"{name}, line 1 has {has}; a trace in JSON lines has {', '.join(wanted)}, and a log "
            "of requests has queued_ts, first_token_ts and last_token_ts, or is what vllm bench "
            "serve --save-detailed writes"
        )
    return "bailian" if "chat_id" in fields else "mooncake"


def _parse_csv(name: str, data: bytes, layout: Layout, format: str) -> Rows:
    header = _header(data)
    for column in layout[:3]:
        if header.count(column) != 1:
            problem = "is missing" if column not in header else "appears twice"
            raise InputError(
                f"{name}, line 1: column {column!r} {problem}; the {format} format has "
                f"{', '.join(layout[:3])}"
            )
    kind_columns = [column for column in header if column.casefold() == _KIND]
    if len(kind_columns) > 1:
        raise InputError(f"{name}, line 1: column {_KIND!r} appears twice; a row has one kind")
    if b"\n" not in data:
        raise InputError(f"{name} has a header but no rows")

    # pyarrow swallows what a handler raises, so the message waits for it to give up by itself.
    wrong_rows: list[str] = []

    def note_row(row: pyarrow.csv.InvalidRow) -> str:
        wrong_rows.append(
            f"line {row.number}: {row.actual_columns} cells, but the header has "
            f"{row.expected_columns}"
        )
        return "error"

    # Columns are found by position, so that unused ones may have any name.
    names = [str(i) for i in range(len(header))]
    used = [names[header.index(column)] for column in (*layout[:3], *kind_columns)]
    try:
        table = pyarrow.csv.read_csv(
            pa.BufferReader(data),
            # One thread: only then does pyarrow know the line of a row with too few cells.
            read_options=pyarrow.csv.ReadOptions(
                use_threads=False, column_names=names, skip_rows=1
            ),
            parse_options=pyarrow.csv.ParseOptions(
                ignore_empty_lines=False, invalid_row_handler=note_row
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={column: pa.string() for column in used},
                include_columns=used,
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid as error:
        problem = wrong_rows[0] if wrong_rows else f"not a CSV table: {str(error).splitlines()[0]}"
        raise InputError(f"{name}, {problem}") from None
    time, prompt, output, *kind_cells = (
        pc.call_function("utf8_trim_whitespace", [table[column].combine_chunks()])
        for column in used
    )
    line = np.arange(2, len(table) + 2)
    convert_time = _calendar_s if format == "azure" else _seconds
    rows = Rows(
        convert_time(name, layout.time, time) / layout.second,
        _tokens(name, layout.prompt, prompt),
        _tokens(name, layout.output, output),
        line,
    )
    if not kind_cells:
        return rows
    kinds, kind = _csv_kinds(name, kind_columns[0], kind_cells[0], line)
    return rows._replace(kinds=kinds, kind=kind)


def _csv_kinds(name: str, column: str, cells: pa.StringArray, line: NDArray[np.int64]) -> _Kinds:
    encoded = pc.call_function("dictionary_encode", [cells])
    texts = [str(text) for text in encoded.dictionary]
    return _kinds(name, column, texts, numpy_of(encoded.indices), line)


def _tokens(name: str, column: str, cells: pa.StringArray) -> NDArray[np.int64]:
    values = _numbers(cells, r"^[0-9]{1,8}(\.0*)?$")
    rule = f"a whole number from 0 to {MAX_TOKENS}"
    _check_cells(name, column, cells, values <= MAX_TOKENS, rule)
    return values.astype(np.int64)


def _seconds(name: str, column: str, cells: pa.StringArray) -> NDArray[np.float64]:
    values = _numbers(cells, r"^([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$")
    _check_cells(name, column, cells, np.isfinite(values), "a finite number from 0 on")
    return values


def _numbers(cells: pa.StringArray, pattern: str) -> NDArray[np.float64]:
    """The cells as numbers, NaN where a cell does not match ``pattern``."""
    options = pc.MatchSubstringOptions(pattern)
    matches = pc.call_function("match_substring_regex", [cells], options)
    numbers = np.full(len(cells), np.nan)
    good = numpy_of(matches.cast(pa.uint8())) == 1
    numbers[good] = numpy_of(cells.filter(matches).cast(pa.float64()))
    return numbers


def _calendar_s(name: str, column: str, cells: pa.StringArray) -> NDArray[np.float64]:
    """Seconds since the first row's time; nanoseconds are kept until after the subtraction."""
    has_offset = str(cells[0])[19:].strip("0123456789.") != ""
    kind = pa.timestamp("ns", "UTC") if has_offset else pa.timestamp("ns")
    try:
        nanoseconds = numpy_of(cells.cast(kind).cast(pa.int64()))
    except pa.ArrowInvalid:
        good = np.array([_is_time(cell, kind) for cell in cells])
        rule = "a time like 2023-11-16 18:17:03.9799600"
        rule += " with a UTC offset, like the first row" if has_offset else ""
        _check_cells(name, column, cells, good, rule)
        raise
    return (nanoseconds - nanoseconds[0]) * 1e-9


def _is_time(cell: pa.StringScalar, kind: pa.DataType) -> bool:
    try:
        return cell.cast(kind) is not None
    except pa.ArrowInvalid:
        return False


def _parse_jsonl(name: str, data: bytes, layout: Layout, known: bool) -> tuple[Rows, Layout]:
    """The rows, and the layout with what they tell.

    Args:
      known: whether the unit of time and the size of blocks are those of ``layout``.
    """
    rows: list[tuple[float, int, int]] = []
    ids: list[list[Any]] = []
    texts: dict[str, int] = {}
    kind_texts: list[int] = []
    for line, text in enumerate(data.split(b"\n"), start=1):
        row = _json_row(f"{name}, line {line}", text)
        time = row.number(layout.time, 0, 1e15)
        rows.append((time, _json_tokens(row, layout.prompt), _json_tokens(row, layout.output)))
        listed = row.get("hash_ids")
        ids.append(listed if isinstance(listed, list) else [])
        kind_texts.append(texts.setdefault(_json_kind(row), len(texts)))
    time, prompt, output = np.array(rows).T
    prompt = prompt.astype(int)
    lines = np.arange(1, len(rows) + 1)
    kinds, kind = _kinds(name, _KIND, list(texts), np.array(kind_texts), lines)
    if not known and layout == _FORMATS["mooncake"]:
        layout = _told_layout(name, time, prompt, ids)
    rows_read = Rows(
        time / layout.second,
        prompt,
        output.astype(int),
        lines,
        from_ids(ids, prompt, layout.block_tokens),
        kinds,
        kind,
    )
    return rows_read, layout


def _told_layout(
    name: str, time: NDArray[np.float64], prompt: NDArray[np.int64], ids: list[list[Any]]
) -> Layout:
    """Mooncake's, or that of the traces in seconds which have the same fields.

    Raises:
      InputError: times have fractions, as seconds have, and may be milliseconds as well.
    """
    mooncake, timed = _FORMATS["mooncake"], _FORMATS["timed"]
    pairs = [(len(listed), tokens) for listed, tokens in zip(ids, prompt, strict=True) if listed]

    def fits(layout: Layout) -> bool:
        return all(count == -(-tokens // layout.block_tokens) for count, tokens in pairs)

    if pairs and fits(timed) and not fits(mooncake):
        return timed
    span = float(time[-1] - time[0])
    if len(time) >= _FEWEST_TO_TELL and span > 0.0:
        rate_ms = mooncake.second * len(time) / span
        if rate_ms > _MOST_RPS:
            return timed
        if (time != np.rint(time)).any():
            raise InputError(
                f"{name} does not tell the unit of its timestamps: in seconds it has "
                f"{rate_ms / mooncake.second:.3g} requests per second, in milliseconds "
                f"{rate_ms:.3g}; say which (--time-unit s or --time-unit ms)"
            )
    return mooncake


def _json_row(where: str, text: bytes) -> checks.JsonObject:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: a number too long or nesting too deep") from None
    return checks.JsonObject(row, where)


def _json_tokens(row: checks.JsonObject, key: str) -> int:
    value = row.get(key, checks.MISSING)
    whole = isinstance(value, float) and value.is_integer()
    return checks.whole(row.name(key), int(value) if whole else value, 0, MAX_TOKENS)


def _json_kind(row: checks.JsonObject) -> str:
    """The kind of a row, empty where the row has none."""
    value = row.get(_KIND)
    if value is not None and not isinstance(value, str):
        checks.refuse(f"{row.where}, column {_KIND}", value, KIND_RULE)
    return (value or "").strip()


def _kinds(
    name: str,
    column: str,
    texts: Sequence[str],
    text: NDArray[np.integer],
    line: NDArray[np.int64],
) -> _Kinds:
    """The kinds of a file's rows.

    Args:
      name: of the file.
      column: that holds them.
      texts: all that the column has, trimmed; an empty one stands for none.
      text: int[n], which of them each row has.
      line: int64[n], the line of each row.

    Returns:
      the names of kinds, and the index of each row's; () and None if no row has a kind.

    Raises:
      InputError: a text is no kind, or a row has none while others have.
    """
    if not any(texts):
        return (), None
    wrong = np.array([not is_kind(each) for each in texts])[text]
    if wrong.any():
        first = int(np.argmax(wrong))
        where, found = f"{name}, line {line[first]}, column {column}", texts[text[first]]
        if found:
            checks.refuse(where, found, KIND_RULE)
        raise InputError(f"{where}: there is no kind, which other rows have; give every row one")
    return number_kinds(texts, text)


def _check_order(name: str, rows: Rows, layout: Layout) -> None:
    falls = np.flatnonzero(np.diff(rows.time_s) < 0.0)
    if len(falls):
        raise InputError(
            f"{name}, line {rows.line[falls[0] + 1]}, column {layout.time}: earlier than the line "
            f"before; sort the file by time"
        )


def _check_cells(
    name: str, column: str, cells: pa.StringArray, good: NDArray[np.bool_], allowed: str
) -> None:
    if not good.all():
        first = int(np.argmin(good))
        checks.refuse(f"{name}, line {first + 2}, column {column}", str(cells[first]), allowed)
