"""Files of trajectories: JSON lines and parquet.

A line or a row is a trajectory. JSON has arrays as lists of numbers; parquet has them as typed
lists, and fields without a fixed form as JSON text. Every trajectory goes through
``jaxserve.rollouts.export.exported`` before it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as parquet

from jaxserve import checks
from jaxserve.datafiles import write_atomic
from jaxserve.errors import InputError
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.traces import TokenTrace, Trajectory

_ARRAYS: Mapping[str, Any] = {
    "prompt_ids": np.int32,
    "response_ids": np.int32,
    "loss_mask": np.uint8,
    "response_logprobs": np.float32,
}
_FREE = ("messages", "tools", "metadata")
"""Fields of a trace without a fixed form."""
_COUNTS = ("dropped", "cuts", "failures")
_TRACE = pa.struct(
    [
        *(pa.field(name, pa.list_(pa.from_numpy_dtype(kind))) for name, kind in _ARRAYS.items()),
        pa.field("response_texts", pa.list_(pa.string())),
        pa.field("finish_reason", pa.string()),
        pa.field("reward", pa.float64()),
        *(pa.field(name, pa.string()) for name in _FREE),
    ]
)
_SCHEMA = pa.schema(
    [
        pa.field("status", pa.string()),
        pa.field("traces", pa.list_(_TRACE)),
        *(pa.field(name, pa.string()) for name in _COUNTS),
    ]
)


def write_trajectories(path: Path | str, trajectories: Iterable[Trajectory]) -> None:
    """Writes a file atomically.

    Args:
      path: name that ends in ``.jsonl`` or ``.parquet``.
      trajectories: trajectories of a builder.

    Raises:
      InputError: another ending, or a reward that is not finite.
    """
    kind = checks.ending("path of trajectories", path, ".jsonl", ".parquet")
    if kind == ".jsonl":
        write_atomic(path, b"".join(map(trajectory_line, trajectories)))
        return
    rows = [_row(exported(trajectory)) for trajectory in trajectories]
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist([_typed(row) for row in rows], _SCHEMA), sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def trajectory_line(trajectory: Trajectory) -> bytes:
    """A trajectory as a line of JSON.

    Raises:
      InputError: a reward that is not finite.
    """
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(_row(exported(trajectory)), option=options)


def parse_trajectory(line: bytes) -> Trajectory:
    """The trajectory in a line of ``trajectory_line``.

    Raises:
      InputError: the line is not a trajectory.
    """
    try:
        return _trajectory(orjson.loads(line))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"a line of JSON is no trajectory: {error}") from None


def read_trajectories(path: Path | str) -> list[Trajectory]:
    """The trajectories in a file of ``write_trajectories``. Tuples are read as lists.

    Raises:
      InputError: another ending, or the file does not hold trajectories.
    """
    kind = checks.ending("path of trajectories", path, ".jsonl", ".parquet")
    path = Path(path)
    if not path.is_file():
        raise InputError(f"trajectories are {str(path)!r}; it must be a file")
    try:
        rows = _json_rows(path) if kind == ".jsonl" else _parquet_rows(path)
        return [_trajectory(row) for row in rows]
    except (KeyError, TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InputError(f"{path} does not hold trajectories: {error}") from None


def _row(trajectory: Trajectory) -> dict[str, Any]:
    return {**vars(trajectory), "traces": [_checked(trace) for trace in trajectory.traces]}


def _checked(trace: TokenTrace) -> dict[str, Any]:
    """The fields of a trace, with arrays of the types in which they are read."""
    if trace.reward is not None:
        checks.number("reward of a trace", trace.reward)
    arrays = {
        name: np.ascontiguousarray(getattr(trace, name), kind) for name, kind in _ARRAYS.items()
    }
    return {**vars(trace), **arrays}


def _typed(row: dict[str, Any]) -> dict[str, Any]:
    """A row with JSON text in place of fields without a fixed form."""
    traces = [
        {**trace, **{name: orjson.dumps(trace[name]).decode() for name in _FREE}}
        for trace in row["traces"]
    ]
    counts = {name: orjson.dumps(row[name]).decode() for name in _COUNTS}
    return {**row, **counts, "traces": traces}


def _json_rows(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def _parquet_rows(path: Path) -> list[dict[str, Any]]:
    rows = parquet.read_table(path, schema=_SCHEMA).to_pylist()
    for row in rows:
        # Earlier files lack ``failures``.
        row.update({name: orjson.loads(row[name] or "{}") for name in _COUNTS})
        for trace in row["traces"]:
            trace.update({name: orjson.loads(trace[name]) for name in _FREE})
            trace["response_texts"] = trace["response_texts"] or ()  # earlier files lack them
    return rows


def _trajectory(row: dict[str, Any]) -> Trajectory:
    traces = tuple(
        TokenTrace(
            **{**trace, **{name: np.array(trace[name], kind) for name, kind in _ARRAYS.items()}}
        )
        for trace in row["traces"]
    )
    return Trajectory(**{**row, "traces": traces})
