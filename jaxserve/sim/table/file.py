"""Latency tables on disk: one parquet file per model and GPU, checked cell by cell when read.

A file has one row per cell of the grid in ``jaxserve.sim.table.grid``. Lengths beyond 8,192 tokens
may be left out, the longest first:

| column | unit | what it is |
|---|---|---|
| batch_size | sequences | concurrency of a closed loop; also the decode batch |
| kv_budget | share | part of the KV pool that is reserved |
| spec_length | tokens | speculation depth, 0 = off |
| quant_tier | | 0 FP16, 1 INT8 (W8A8), 2 INT4 (weight only) |
| prompt_len_bucket | | 0..11 for 64..131072 tokens, of the prompt and of the mean context |
| ttft_p50_ms, ttft_p99_ms | ms | time to first token of the closed loop |
| tpot_ms | ms | its mean time per output token after the first |
| tps | tokens/s | its output tokens per second |
| gpu_mem_gb | GiB | memory in use on one GPU |
| cost_per_1k | US dollars | rent and electricity of 1,000 output tokens |
| prefill_ms | ms | one prompt alone on an idle engine |
| itl_ms | ms | a pure decode iteration of the batch at that mean context |
| prefill_added_ms | ms | what one prompt adds to the iterations of the batch |
| output_len | tokens | output of every request of the closed loop |

Rows that differ only in ``kv_budget`` must agree on the last three times, and rows that differ only
in ``batch_size`` on prefill_ms.
"""

import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.arrays.convert import numpy_of
from jaxserve.datafiles import data_dir, write_atomic
from jaxserve.errors import InputError
from jaxserve.fields import MAX_DEPTH, TOKEN_BUDGETS, Tier
from jaxserve.sim.machine.cost_json import cost_from_dict, cost_to_dict
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.deployment import MAX_KV_POOL_TOKENS
from jaxserve.sim.machine.stack import Stack
from jaxserve.sim.table.extent import Extent
from jaxserve.sim.table.grid import (
    AXES,
    LEAST_BUCKETS,
    PROMPT_LENGTHS,
    axis_columns,
    grid_axes,
    grid_rows,
    grid_shape,
)

LOAD_TEST_COLUMNS = ("ttft_p50_ms", "ttft_p99_ms", "tpot_ms", "tps", "gpu_mem_gb", "cost_per_1k")
PRIMITIVE_COLUMNS = ("prefill_ms", "itl_ms", "prefill_added_ms")
COLUMNS = (*AXES, *LOAD_TEST_COLUMNS, *PRIMITIVE_COLUMNS, "output_len")

MAX_FILE_BYTES = 64 * 2**20
_MAX_ROWS = 10 * grid_rows(len(PROMPT_LENGTHS))
_METADATA_KEY = b"jaxserve"
_EXTENT = [field.name for field in dataclasses.fields(Extent)]
_TOLERANCE = 1e-5  # relative; beyond float32 rounding


@dataclass(frozen=True)
class Calibration:
    """Measurements of a running engine; a live task locks knobs that were not measured."""

    tier: int
    """the quantisation tier that was measured; the table has the same times in the others."""
    depths: tuple[int, ...]
    """speculation depths that were measured. At other depths a token to verify costs as much as any
    token, and drafting costs nothing."""
    kv_pool_tokens: int | None
    """KV tokens that the engine has room for; None where it does not say."""
    frontend_s: float
    """median TTFT of a request that has the engine for itself, less its prefill."""

    @classmethod
    def from_dict(cls, fields: checks.JsonObject) -> "Calibration":
        """Parses measurements from the fields of a JSON object.

        Raises:
          InputError: a field is missing or out of range.
        """
        pool = fields.get("kv_pool_tokens", checks.MISSING)
        if pool is not None:
            pool = fields.whole("kv_pool_tokens", 1, MAX_KV_POOL_TOKENS)
        name, depths = fields.name("depths"), fields.entries("depths")
        return cls(
            tier=fields.whole("tier", 0, len(Tier) - 1),
            depths=tuple(checks.whole(name, each, 0, MAX_DEPTH) for each in depths),
            kv_pool_tokens=None
            if pool is None
            else fields.whole("kv_pool_tokens", 1, MAX_KV_POOL_TOKENS),
            frontend_s=fields.number("frontend_s", 0),
        )


@dataclass(frozen=True)
class TableMetadata:
    """Description and origin of a table."""

    model: str
    """name of the model's data file."""
    hardware: str
    """name of the GPU's data file."""
    engine: str
    """serving engine that the times stand for."""
    source: str
    """origin of the constants."""
    fit_error: float | None
    """mean relative error against held-out measurements: of TPOT in a load test, else of steps or
    kernels; None where the constants were not fitted."""
    tensor_parallel: int
    """GPUs that share every layer."""
    token_budget: int
    """tokens that one iteration may process."""
    acceptance: str
    """draft-acceptance profile of the closed-loop columns."""
    cost_model: CostModel
    """the constants that the times were computed with."""
    calibration: Calibration | None = None
    """None where no running engine was measured."""
    stack: Stack | None = None
    """serving stack; None for a dense model with the constants of its GPU's file, whose tiers are
    FP16, INT8 and INT4."""
    measured: Extent | None = None
    """extent of the load test that the table was fitted to; None where there was none."""

    def to_json(self) -> str:
        """JSON form that ``from_json`` reads back exactly."""
        data = dataclasses.asdict(self) | {"cost_model": cost_to_dict(self.cost_model)}
        for name in ("calibration", "stack", "measured"):
            if data[name] is None:
                del data[name]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: bytes | str) -> "TableMetadata":
        """Inverse of ``to_json``.

        Raises:
          InputError: not JSON, or a field is missing, unknown or of the wrong type.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError("the metadata is not valid JSON") from None
        names = [field.name for field in dataclasses.fields(cls)]
        fields = checks.JsonObject(data, "the metadata", names)
        words = ("model", "hardware", "engine", "source", "acceptance")
        error = fields.get("fit_error", checks.MISSING)
        calibrated = "calibration" in fields
        known = [field.name for field in dataclasses.fields(Calibration)]
        return cls(
            **{name: fields.text(name) for name in words},
            tensor_parallel=fields.whole("tensor_parallel", 1),
            token_budget=fields.whole("token_budget", *TOKEN_BUDGETS),
            fit_error=None if error is None else fields.number("fit_error", 0),
            cost_model=cost_from_dict(fields.inside("cost_model")),
            calibration=Calibration.from_dict(fields.inside("calibration", known))
            if calibrated
            else None,
            stack=Stack.from_dict(fields["stack"], fields.name("stack"))
            if "stack" in fields
            else None,
            measured=Extent.from_dict(fields.inside("measured", _EXTENT))
            if "measured" in fields
            else None,
        )


_PACKAGED_KEPT = 16
"""Packaged tables that are kept once read, of a megabyte each at most."""


@dataclass(frozen=True)
class TableFile:
    """The contents of a table file, in the order of the grid."""

    metadata: TableMetadata
    """description of the table."""
    columns: dict[str, NDArray[np.float64]]
    """float64 arrays of shape ``grid_shape(buckets)`` for every column but the axes."""

    @property
    def buckets(self) -> int:
        """Lengths that the file has, the shortest of ``PROMPT_LENGTHS``."""
        return self.columns["itl_ms"].shape[-1]


def table_names() -> tuple[str, ...]:
    """Names of the tables that come with the package, as model__hardware."""
    return tuple(sorted(path.stem for path in _packaged_folder().glob("*.parquet")))


def _packaged_folder() -> Path:
    return data_dir() / "tables"


def table_path(name_or_path: str | Path) -> Path:
    """Path of a packaged table's name, or of a file given by its path.

    Raises:
      InputError: there is no such table or file.
    """
    path = Path(name_or_path)
    if path.suffix != ".parquet" and len(path.parts) == 1:
        packaged = _packaged_folder() / f"{name_or_path}.parquet"
        if not packaged.is_file():
            allowed = f"one of {', '.join(table_names())} or the path of a .parquet file"
            checks.refuse("table", str(name_or_path), allowed)
        return packaged
    if not path.is_file():
        raise InputError(f"table file {path} does not exist")
    return path


def read_table_file(name_or_path: str | Path) -> TableFile:
    """Reads and checks a table.

    Raises:
      InputError: not a table, or a column or cell is missing, duplicate or out of range; the
        message names row (from 1) and column.
    """
    path = table_path(name_or_path)
    if path.parent != _packaged_folder():
        return _read(path)
    # A server makes environments while others play; only `table build` writes packaged tables.
    return _packaged_table(path, path.stat().st_mtime_ns)


@functools.lru_cache(_PACKAGED_KEPT)
def _packaged_table(path: Path, written: int) -> TableFile:
    """Args: the path, and when the file was written."""
    del written
    file = _read(path)
    for values in file.columns.values():
        values.flags.writeable = False
    return file


def _read(path: Path) -> TableFile:
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"table file {path} is larger than {MAX_FILE_BYTES // 2**20} MiB")
    try:
        file = parquet.ParquetFile(path)
        if file.metadata.num_rows > _MAX_ROWS:
            rows = grid_rows(len(PROMPT_LENGTHS))
            raise InputError(f"it has {file.metadata.num_rows} rows; at most {rows} are required")
        return _checked(file.read())
    except (pa.ArrowException, OSError):
        raise InputError(f"table file {path} is not a readable parquet file") from None
    except InputError as error:
        raise InputError(f"table file {path}: {error}") from None


def write_table_file(path: Path | str, file: TableFile) -> None:
    """Writes a table, whole or not at all; the file reads back equal."""
    whole = set(AXES) - {"kv_budget"} | {"output_len"}
    columns = axis_columns(file.buckets) | {
        name: values.ravel() for name, values in file.columns.items()
    }
    arrays = {
        name: columns[name].astype(np.int32 if name in whole else np.float32) for name in COLUMNS
    }
    table = pa.table(arrays).replace_schema_metadata({_METADATA_KEY: file.metadata.to_json()})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", compression_level=19)
    write_atomic(path, sink.getvalue().to_pybytes())


def _checked(table: pa.Table) -> TableFile:
    """A parquet table as a ``TableFile``.

    Raises:
      InputError: see ``read_table_file``.
    """
    missing = [name for name in COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(f"column {missing[0]!r} is missing")
    unknown = [name for name in table.column_names if name not in COLUMNS]
    if unknown:
        raise InputError(f"column {unknown[0]!r} is unknown; allowed are {', '.join(COLUMNS)}")
    repeated = [name for name in COLUMNS if table.column_names.count(name) > 1]
    if repeated:
        raise InputError(f"column {repeated[0]!r} appears twice")
    metadata = (table.schema.metadata or {}).get(_METADATA_KEY)
    if metadata is None:
        raise InputError("it has no jaxserve metadata; `jaxserve table fit` writes a table with it")
    if table.num_rows == 0:
        raise InputError(f"it has no rows; {grid_rows(LEAST_BUCKETS)} are required")
    values = {name: _numbers(table[name], name) for name in COLUMNS}
    buckets = _buckets(values["prompt_len_bucket"])
    order = _grid_order(values, buckets)
    shape = grid_shape(buckets)
    columns = {name: values[name][order].reshape(shape) for name in COLUMNS if name not in AXES}
    for name in PRIMITIVE_COLUMNS:
        _check_independence(name, "kv_budget", columns[name], order)
    _check_independence("prefill_ms", "batch_size", columns["prefill_ms"], order)
    return TableFile(TableMetadata.from_json(metadata), columns)


def _numbers(column: pa.ChunkedArray, name: str) -> NDArray[np.float64]:
    """A column as finite float64; all but the axes must be positive."""
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        checks.refuse(f"column {name}", str(kind), "numbers")
    values = numpy_of(column.cast(pa.float64()))
    bad = ~np.isfinite(values) if name in AXES else ~(np.isfinite(values) & (values > 0))
    if bad.any():
        row = int(bad.argmax())
        allowed = "a finite number" if name in AXES else "a finite number above 0"
        checks.refuse(f"row {row + 1}, column {name}", values[row], allowed)
    return values


def _buckets(column: NDArray[np.float64]) -> int:
    """Number of lengths in the file, from its highest bucket."""
    return int(np.clip(np.rint(column.max()) + 1, LEAST_BUCKETS, len(PROMPT_LENGTHS)))


def _grid_order(values: dict[str, NDArray[np.float64]], buckets: int) -> NDArray[np.int64]:
    """int64[grid_rows(buckets)], the row of each cell of the grid in its order."""
    axes = grid_axes(buckets)
    indices = []
    for name, allowed in axes.items():
        # Budgets such as 0.1 may have been stored as float32.
        distance = np.abs(values[name][:, None] - np.asarray(allowed, float))
        nearest = distance.argmin(axis=1)
        off = distance.min(axis=1) > 1e-6
        if off.any():
            row = int(off.argmax())
            points = f"one of {', '.join(f'{value:g}' for value in allowed)}"
            checks.refuse(f"row {row + 1}, column {name}", values[name][row], points)
        indices.append(nearest)
    rows = grid_rows(buckets)
    cell = np.ravel_multi_index(tuple(indices), grid_shape(buckets))
    counts = np.bincount(cell, minlength=rows)
    if (counts > 1).any():
        double = int((counts > 1).argmax())
        first, second = np.flatnonzero(cell == double)[:2]
        raise InputError(
            f"rows {first + 1} and {second + 1} are the same cell ({_cell_name(double, buckets)})"
        )
    if (counts == 0).any():
        raise InputError(
            f"{int((counts == 0).sum())} of {rows} cells are missing, the first is "
            f"{_cell_name(int((counts == 0).argmax()), buckets)}"
        )
    return np.argsort(cell)


def _check_independence(
    name: str, axis: str, values: NDArray[np.float64], order: NDArray[np.int64]
) -> None:
    """Rows that differ only in ``axis`` must agree on the column."""
    first = values.take([0], axis=AXES.index(axis))
    off = np.abs(values / first - 1) > _TOLERANCE
    if off.any():
        cell = int(off.argmax())
        raise InputError(
            f"row {order[cell] + 1}, column {name} is {values.flat[cell]:g}, not what the same "
            f"cell has at another {axis}; they must agree"
        )


def _cell_name(cell: int, buckets: int) -> str:
    """A cell of the grid in words, for messages."""
    axes = axis_columns(buckets)
    return ", ".join(f"{name} {axes[name][cell]:g}" for name in AXES)
