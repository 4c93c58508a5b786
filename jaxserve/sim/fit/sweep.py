"""Reads a measured load test: one row per point of a concurrency sweep.

Accepted are CSV and parquet files with one row per run, and the JSON that ``vllm bench serve
--save-result`` and ``sglang.bench_serving`` write (one object, a list, or one object per line).
Column names of several tools are known; a name that is not is an error, so that a misspelt one is
not silently left out, but in files that a benchmark has written, which have many.

A fit takes each row for the steady state of a plain engine that always has so many requests in
flight. Columns that say otherwise are looked at: failed requests, too few of them to fill every
slot several times, requests by a clock, drafts, and more in flight than the engine runs.
"""

import contextlib
import csv
import io
import json
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError, InputWarning

MIN_ROWS = 8
"""Fewer points cannot tell the constants of a cost model apart."""

MAX_ROWS = 10_000
MAX_FILE_BYTES = 64 * 2**20

ALIASES: dict[str, tuple[str, ...]] = {
    "concurrency": ("max_concurrency", "concurrency", "batch_size"),
    "prompt length": ("random_input_len", "input_len", "isl", "prompt_len"),
    "output length": ("random_output_len", "output_len", "osl"),
    "TPOT": (
        "mean_tpot_ms", "tpot_ms", "silicon_tpot_ms", "median_tpot_ms", "p50_tpot_ms",
        "mean_itl_ms", "itl_ms", "itl", "median_itl_ms", "p50_itl_ms",
    ),
    "TTFT": (
        "median_ttft_ms", "p50_ttft_ms", "ttft_p50_ms", "mean_ttft_ms", "ttft_ms",
        "silicon_ttft_ms",
    ),
}  # fmt: skip
"""Known columns of each quantity. Where a file has several statistics of a time, or the concurrency
that was asked for and the one that was reached, the first counts; other columns for the same
setting are an error."""

_SETTINGS = ("concurrency", "prompt length", "output length")
_ASKED_AND_REACHED = ("max_concurrency", "concurrency")
_LOWEST = {"concurrency": 1.0, "prompt length": 1.0, "output length": 2.0}
_OPEN_LOOP = ("request_rate",)
"""Where it is finite, requests arrive by a clock, however many are in flight."""
_TOTALS = {"prompt length": "total_input_tokens", "output length": "total_output_tokens"}
"""Tokens of all requests that were completed, which tell the mean length whatever was asked for."""
_COUNTS = ("num_prompts", "completed", "failed")
_DRAFTS = {
    "spec_decode_acceptance_length": 1.0,
    "spec_decode_acceptance_rate": 0.0,
    "spec_decode_num_drafts": 0.0,
    "accept_length": 1.0,
}
"""Columns of engines that speculate, and the value that says that this one did not."""
_BATCH_CAP = ("max_num_seqs", "max_running_requests")
_TOKEN_BUDGET = ("max_num_batched_tokens", "chunked_prefill_size")
_MOST_FAILED = 0.02
"""Share of a row's requests that may have failed, with a warning."""
_FEWEST_REQUESTS = 3
"""Requests for each one in flight, below which filling and emptying the engine is much of a run."""
_TENSOR_PARALLEL = ("tp_size", "tensor_parallel", "tensor_parallel_size", "tp")
# Columns of the same tools that say nothing about the cost of an iteration.
_IGNORED = re.compile(
    r"(mean|median|std|p\d+(\.\d+)?)_(ttft|tpot|itl|e2el)_ms"
    r"|(request|output|total_token|input|total)_(throughput|goodput)"
    r"|system|gpu|hardware|backend|backend_version|endpoint_type|framework|version|model|model_id"
    r"|model_path|tokenizer_id|date|label|burstiness|duration"
    r"|max_output_tokens_per_s|max_concurrent_requests|precision|notes"
)


@dataclass(frozen=True)
class Sweep:
    """Measured points; float64 arrays of one length."""

    concurrency: NDArray[np.float64]
    """requests in flight."""
    prompt_tokens: NDArray[np.float64]
    """prompt length of every request."""
    output_tokens: NDArray[np.float64]
    """output length of every request."""
    tpot_s: NDArray[np.float64]
    """time per output token after the first."""
    ttft_s: NDArray[np.float64] | None
    """time to first token; None where it was not recorded."""

    def __len__(self) -> int:
        return len(self.tpot_s)

    def axes(self) -> dict[str, NDArray[np.float64]]:
        """Axes of the rows in which a fit may extrapolate, by name."""
        return {
            "requests in flight": self.concurrency,
            "tokens in a sequence": self.prompt_tokens + self.output_tokens,
        }

    def single_lengths(self) -> dict[str, float]:
        """Lengths, by name, that are the same in all rows: a fit to these says nothing of other
        lengths."""
        lengths = {"prompts": self.prompt_tokens, "outputs": self.output_tokens}
        return {name: float(each[0]) for name, each in lengths.items() if len(np.unique(each)) == 1}

    def select(self, rows: NDArray[np.bool_]) -> "Sweep":
        """The points where ``rows`` is true."""
        return replace(
            self,
            concurrency=self.concurrency[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            tpot_s=self.tpot_s[rows],
            ttft_s=None if self.ttft_s is None else self.ttft_s[rows],
        )


def read_sweep(
    path: Path | str, tensor_parallel: int = 1, token_budget: int | None = None
) -> Sweep:
    """Reads and checks a sweep measured on ``tensor_parallel`` GPUs.

    Args:
      path: the file.
      tensor_parallel: what the fit is for; a file that says otherwise is refused.
      token_budget: tokens of an iteration that the fit is for, likewise; None for any.

    Raises:
      InputError: unreadable, too large, fewer than ``MIN_ROWS`` rows, an unknown or missing column,
        a value that is missing or out of range, or rows that are no steady state of a plain engine;
        the message names row (from 1) and column.
    """
    path = Path(path)
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
        columns = _with_lengths(reader(path))
        _check_run(columns, tensor_parallel, token_budget)
        return _checked(columns)
    except InputError as error:
        raise InputError(f"sweep file {path}: {error}") from None


def _read_csv(path: Path) -> dict[str, list[Any]]:
    """Columns of a CSV file with a header line."""
    try:
        lines = list(csv.reader(io.StringIO(_text(path))))
    except csv.Error as error:
        raise InputError(f"it is not a CSV file: {error}") from None
    rows = [line for line in lines[1:] if any(field.strip() for field in line)]
    header = _header(lines[0] if lines else [])
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise InputError(f"row {number} has {len(row)} values; the header has {len(header)}")
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    """Columns of a parquet file."""
    try:
        file = parquet.ParquetFile(path)
        if file.metadata.num_rows > MAX_ROWS:
            raise InputError(
                f"it has {file.metadata.num_rows} rows; at most {MAX_ROWS} are allowed"
            )
        table = file.read()
    except (pa.ArrowException, OSError):
        raise InputError("it is not a readable parquet file") from None
    header = _header(table.column_names)
    return {name: column.to_pylist() for name, column in zip(header, table.columns, strict=True)}


def _read_json(path: Path) -> dict[str, list[Any]]:
    """Columns of benchmark results as JSON objects; their many other statistics are skipped."""
    text = _text(path)
    try:
        try:
            data = json.loads(text)
        except json.JSONDecodeError:
            data = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (json.JSONDecodeError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
        raise InputError(f"it is not valid JSON: {reason}") from None
    rows = data if isinstance(data, list) else [data]
    if not all(isinstance(row, Mapping) for row in rows):
        raise InputError("it must hold JSON objects, one per run")
    rows = [{_normal(name): value for name, value in row.items()} for row in rows]
    names = {name for row in rows for name in row}
    present = sorted(_known() & names)
    if rows and not present:
        raise InputError(
            f"its {len(rows)} rows have {', '.join(sorted(names)[:12]) or 'no fields'}, none of "
            f"which is known; {_known_columns()}"
        )
    return {name: [row.get(name) for row in rows] for name in present}


def _with_lengths(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Columns with the mean lengths that a benchmark has counted, in place of those asked for."""
    found = dict(columns)
    completed = columns.get("completed")
    for what, total in _TOTALS.items():
        if completed is None or total not in columns:
            continue
        lengths = []
        for number, (tokens, requests) in enumerate(zip(columns[total], completed, strict=True), 1):
            count = _number(requests, number, "completed")
            checks.positive(f"row {number}, column completed", count)
            lengths.append(_number(tokens, number, total) / count)
        found = {name: values for name, values in found.items() if name not in ALIASES[what]}
        found[ALIASES[what][0]] = lengths
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError):
        raise InputError("it is not a UTF-8 text file") from None


def _normal(name: str) -> str:
    """Column name as in ``ALIASES``."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())


def _known() -> set[str]:
    """Names of columns that are looked at."""
    settings = {name for names in ALIASES.values() for name in names}
    deployment = {*_TENSOR_PARALLEL, *_OPEN_LOOP, *_BATCH_CAP, *_TOKEN_BUDGET, *_DRAFTS}
    return settings | deployment | {*_COUNTS, *_TOTALS.values()}


def _known_columns() -> str:
    listed = "; ".join(f"{what}: {', '.join(names)}" for what, names in ALIASES.items())
    return f"known are {listed}"


def _header(names: Sequence[str]) -> list[str]:
    """Column names as in ``ALIASES``; none twice, and all of them known unless a benchmark has
    written the file."""
    header = [_normal(name) for name in names]
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"column {name!r} appears twice")
    of_a_benchmark = {"completed", *_TOTALS.values()} <= {*header}
    unknown = [name for name in header if name not in _known() and not _IGNORED.fullmatch(name)]
    if unknown and not of_a_benchmark:
        listed = ", ".join(repr(name) for name in unknown)
        several = f"columns {listed} are" if len(unknown) > 1 else f"column {listed} is"
        raise InputError(f"{several} unknown; {_known_columns()}")
    return header


def _check_run(
    columns: dict[str, list[Any]], tensor_parallel: int, token_budget: int | None
) -> None:
    """Refuses rows that are not what a fit takes them for.

    Raises:
      InputError: see ``read_sweep``.
    """
    for names, expected in ((_TENSOR_PARALLEL, tensor_parallel), (_TOKEN_BUDGET, token_budget)):
        for name, number, value in _cells(columns, names):
            if expected is not None and _number(value, number, name) != expected:
                allowed = f"{expected}, which the fit is for"
                checks.refuse(f"row {number}, column {name}", value, allowed)
    for name, number, value in _cells(columns, _OPEN_LOOP):
        if not _is_endless(value):
            allowed = "inf, as in a load test that keeps requests in flight"
            checks.refuse(f"row {number}, column {name}", value, allowed)
    for name, number, value in _cells(columns, _DRAFTS):
        if _number(value, number, name) > _DRAFTS[name]:
            allowed = (
                "that of an engine without drafts, as the fit takes TPOT for that of speculation "
                "depth 0"
            )
            checks.refuse(f"row {number}, column {name}", value, allowed)
    name = next((name for name in ALIASES["concurrency"] if name in columns), None)
    if name is not None:
        _check_steady(columns, [_number(v, i, name) for i, v in enumerate(columns[name], 1)])


def _check_steady(columns: dict[str, list[Any]], concurrency: Sequence[float]) -> None:
    """Refuses rows in which requests failed, waited for a slot, or began and ended together."""
    counts = {
        name: {
            number: _number(value, number, name) for _, number, value in _cells(columns, (name,))
        }
        for name in _COUNTS
    }
    failed, few, capped = [], [], []
    for number, in_flight in enumerate(concurrency, 1):
        done, asked = counts["completed"].get(number), counts["num_prompts"].get(number)
        lost = counts["failed"].get(number, 0.0)
        if done is not None and asked is not None:
            lost = max(lost, asked - done)
        total = lost + (done if done is not None else (asked or 0.0) - lost)
        if lost > 0.0:
            failed.append((number, lost / max(total, lost)))
        started = asked if asked is not None else done
        if started is not None and in_flight > 1.0 and started < _FEWEST_REQUESTS * in_flight:
            few.append(number)
    for name, number, value in _cells(columns, _BATCH_CAP):
        if _number(value, number, name) < concurrency[number - 1]:
            capped.append((number, name, value))
    if failed and max(share for _, share in failed) > _MOST_FAILED:
        number, share = max(failed, key=lambda each: each[1])
        raise InputError(
            f"in row {number} {share:.0%} of the requests failed, so that its times are not those "
            f"of so many in flight; at most {_MOST_FAILED:.0%} may"
        )
    if failed:
        warnings.warn(
            f"requests failed in {_rows(number for number, _ in failed)}",
            InputWarning,
            stacklevel=2,
        )
    if few:
        raise InputError(
            f"{_rows(few)} had fewer than {_FEWEST_REQUESTS} requests for each one in flight, so "
            "that no slot was refilled often; measure with num_prompts of ten times the concurrency"
        )
    if capped:
        number, name, value = capped[0]
        raise InputError(
            f"{_rows(each[0] for each in capped)} had more requests in flight than the engine runs "
            f"(row {number}: {name} {value}, {concurrency[number - 1]:g} in flight); leave them out"
        )


def _rows(numbers: Iterable[int]) -> str:
    """Rows in words."""
    listed = [*numbers]
    if len(listed) == 1:
        return f"row {listed[0]}"
    shown = ", ".join(map(str, listed[:8]))
    return f"rows {shown}{' and others' if len(listed) > 8 else ''}"


def _cells(
    columns: Mapping[str, Sequence[Any]], names: Iterable[str]
) -> Iterator[tuple[str, int, Any]]:
    """Name, row (from 1) and value of the cells of these columns that say something."""
    for name in names:
        for number, value in enumerate(columns.get(name, ()), 1):
            if value is not None and not (isinstance(value, str) and not value.strip()):
                yield name, number, value


def _checked(columns: dict[str, list[Any]]) -> Sweep:
    """Columns as a ``Sweep``.

    Raises:
      InputError: see ``read_sweep``.
    """
    count = len(next(iter(columns.values()), []))
    if count == 0:
        raise InputError(f"it has no rows; at least {MIN_ROWS} are required")
    if count > MAX_ROWS:
        raise InputError(f"it has {count} rows; at most {MAX_ROWS} are allowed")
    values = {}
    for what, names in ALIASES.items():
        present = [name for name in names if name in columns]
        if not present and what != "TTFT":
            raise InputError(f"a column for {what} is missing; known are {', '.join(names)}")
        if len(present) > 1 and what in _SETTINGS and tuple(present) != _ASKED_AND_REACHED:
            raise InputError(f"columns {' and '.join(present)} both give the {what}")
        if present:
            values[what] = _column(columns[present[0]], present[0], _LOWEST.get(what))
    if count < MIN_ROWS:
        raise InputError(f"it has {count} rows; at least {MIN_ROWS} are required")
    ttft_ms = values.get("TTFT")
    return Sweep(
        concurrency=values["concurrency"],
        prompt_tokens=values["prompt length"],
        output_tokens=values["output length"],
        tpot_s=values["TPOT"] / 1e3,
        ttft_s=None if ttft_ms is None else ttft_ms / 1e3,
    )


def _column(values: Sequence[Any], name: str, lowest: float | None) -> NDArray[np.float64]:
    """A column as numbers above 0, or from ``lowest`` on."""
    numbers = [_number(value, row, name) for row, value in enumerate(values, 1)]
    for row, number in enumerate(numbers, 1):
        if lowest is None:
            checks.positive(f"row {row}, column {name}", number)
        else:
            checks.number(f"row {row}, column {name}", number, lowest)
    return np.array(numbers)


def _is_endless(value: Any) -> bool:
    """Whether a request rate is none: infinite, or not there."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    with contextlib.suppress(TypeError, ValueError):
        return math.isinf(float(value))
    return False


def _number(value: Any, row: int, name: str) -> float:
    """A finite number from a field of a file."""
    if value is None or (isinstance(value, str) and not value.strip()):
        value = checks.MISSING
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            value = float(value)
    return checks.number(f"row {row}, column {name}", value)
