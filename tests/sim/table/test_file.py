"""Table files: what is written reads back, and a damaged file is refused in one sentence."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.table import file as file_module
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import (
    COLUMNS,
    Calibration,
    TableFile,
    TableMetadata,
    read_table_file,
    table_names,
    table_path,
    write_table_file,
)
from jaxserve.sim.table.grid import (
    AXES,
    LEAST_BUCKETS,
    PROMPT_LENGTHS,
    axis_columns,
    grid_rows,
    grid_shape,
)
from jaxserve.sim.table.lookup import latency_table

NAME = "llama-3.1-8b__a100-sxm-40gb"
ROWS = grid_rows(LEAST_BUCKETS)
FILE = read_table_file(NAME)
RAW = parquet.read_table(table_path(NAME))


def written(tmp_path: Path, table: pa.Table) -> Path:
    """A file with that content."""
    path = tmp_path / "table.parquet"
    parquet.write_table(table, path)
    return path


def with_column(name: str, values: object) -> pa.Table:
    """The packaged table with one column replaced."""
    return RAW.set_column(RAW.column_names.index(name), name, pa.array(values))


def changed(name: str, row: int, value: float) -> pa.Table:
    """The packaged table with one number replaced; ``row`` counts from 1."""
    values = RAW[name].to_numpy().copy()
    values[row - 1] = value
    return with_column(name, values)


def with_metadata(**changes: object) -> pa.Table:
    """The packaged table with metadata fields replaced."""
    data = json.loads(FILE.metadata.to_json()) | changes
    return RAW.replace_schema_metadata({"jaxserve": json.dumps(data)})


CALIBRATION = {"tier": 1, "depths": [0, 4], "kv_pool_tokens": None, "frontend_s": 0.25}


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    """And a table that nobody calibrated says nothing of it, as its digest is of the text."""
    assert "calibration" not in FILE.metadata.to_json()
    metadata = TableMetadata.from_json(
        json.dumps(json.loads(FILE.metadata.to_json()) | {"calibration": CALIBRATION})
    )
    assert metadata.calibration == Calibration(1, (0, 4), None, 0.25)
    path = tmp_path / "copy.parquet"
    write_table_file(path, TableFile(metadata, FILE.columns))
    assert read_table_file(path).metadata == metadata


def test_round_trip(tmp_path: Path) -> None:
    """Everything but the last bits of the numbers survives writing and reading."""
    path = tmp_path / "deep" / "copy.parquet"
    write_table_file(path, FILE)
    copy = read_table_file(path)
    assert copy.metadata == FILE.metadata
    assert set(copy.columns) == set(COLUMNS) - set(AXES)
    for name, values in FILE.columns.items():
        assert values.shape == grid_shape(LEAST_BUCKETS)
        np.testing.assert_array_equal(copy.columns[name], values)


def test_files_may_have_longer_prompts(tmp_path: Path) -> None:
    """A table that is built today has all lengths, and what a file leaves out is its cost model."""
    long = build("a100-sxm-40gb", "llama-3.1-8b")
    path = tmp_path / "long.parquet"
    write_table_file(path, long)
    copy = read_table_file(path)
    assert copy.buckets == len(PROMPT_LENGTHS)
    assert FILE.buckets == LEAST_BUCKETS
    np.testing.assert_allclose(latency_table(copy).seconds, latency_table(FILE).seconds, rtol=1e-6)
    part = parquet.read_table(path).slice(0, grid_rows(len(PROMPT_LENGTHS)) - 1)
    with pytest.raises(InputError, match=r"1 of 8100 cells are missing.*prompt_len_bucket 11"):
        read_table_file(written(tmp_path, part))


def test_file_has_the_documented_columns() -> None:
    """Users find the columns they know from load tests, under their names and in order."""
    assert tuple(RAW.column_names) == (
        "batch_size", "kv_budget", "spec_length", "quant_tier", "prompt_len_bucket",
        "ttft_p50_ms", "ttft_p99_ms", "tpot_ms", "tps", "gpu_mem_gb", "cost_per_1k",
        "prefill_ms", "itl_ms", "prefill_added_ms", "output_len",
    )  # fmt: skip
    assert RAW.num_rows == ROWS == 5400
    for line in file_module.__doc__.splitlines():  # the table in the module's documentation
        if line.startswith("| ") and not line.startswith("| column"):
            assert all(name in COLUMNS for name in line.split("|")[1].strip().split(", "))


def test_row_order_does_not_matter(tmp_path: Path) -> None:
    """Rows are found by their axes, so a sorted or shuffled file is the same table."""
    shuffled = RAW.take(np.random.default_rng(0).permutation(ROWS))
    copy = read_table_file(written(tmp_path, shuffled))
    for name, values in FILE.columns.items():
        np.testing.assert_array_equal(copy.columns[name], values)


@pytest.mark.parametrize("name", table_names())
def test_packaged_tables_load(name: str) -> None:
    """Every table that comes with the package is valid, small, and says what it is."""
    file = read_table_file(name)
    metadata = file.metadata
    assert f"{metadata.model}__{metadata.hardware}" == name
    assert metadata.cost_model.model == metadata.model
    assert table_path(name).stat().st_size < 120_000
    assert np.isfinite(latency_table(file).seconds).all()


def test_a_packaged_table_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And again once it is written anew; nobody can change what all share."""
    folder = tmp_path / "tables"
    write_table_file(folder / "mine.parquet", FILE)
    monkeypatch.setattr("jaxserve.sim.table.file.data_dir", lambda: tmp_path)
    first = read_table_file("mine")
    assert read_table_file("mine") is first
    with pytest.raises(ValueError, match="read-only"):
        first.columns["itl_ms"][:] = 1.0
    slower = {name: 2.0 * values for name, values in FILE.columns.items()}
    write_table_file(folder / "mine.parquet", TableFile(FILE.metadata, slower))
    np.testing.assert_array_equal(read_table_file("mine").columns["itl_ms"], slower["itl_ms"])


MALFORMED: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "missing column": (lambda: RAW.drop_columns(["itl_ms"]), r"column 'itl_ms' is missing"),
    "unknown column": (
        lambda: RAW.append_column("mood", RAW["tps"]),
        r"column 'mood' is unknown; allowed are batch_size, .*output_len",
    ),
    "column twice": (lambda: RAW.append_column("tps", RAW["tps"]), r"column 'tps' appears twice"),
    "no metadata": (
        lambda: RAW.replace_schema_metadata(None),
        r"it has no jaxserve metadata; `jaxserve table fit` writes",
    ),
    "no rows": (lambda: RAW.slice(0, 0), r"it has no rows; 5400 are required"),
    "NaN": (
        lambda: changed("tpot_ms", 7, np.nan),
        r"row 7, column tpot_ms is nan; it must be a finite number above 0",
    ),
    "infinite": (
        lambda: changed("tps", 5400, np.inf),
        r"row 5400, column tps is inf; it must be a finite",
    ),
    "zero time": (
        lambda: changed("itl_ms", 1, 0.0),
        r"row 1, column itl_ms is 0.0; it must be a finite",
    ),
    "negative time": (
        lambda: changed("prefill_ms", 12, -3.5),
        r"row 12, column prefill_ms is -3.5; it must be a finite number above 0",
    ),
    "null": (
        lambda: with_column("tps", [None, *RAW["tps"].to_pylist()[1:]]),
        r"row 1, column tps is nan",
    ),
    "text": (
        lambda: with_column("tps", ["fast"] * ROWS),
        r"column tps is 'string'; it must be numbers",
    ),
    "off the grid": (
        lambda: changed("batch_size", 3, 5),
        r"row 3, column batch_size is 5.0; it must be one of 1, 4, 8, 16, 32, 64, 128, 256, 512",
    ),
    "unknown tier": (
        lambda: changed("quant_tier", 2, 3),
        r"row 2, column quant_tier is 3.0; it must be one of 0, 1, 2",
    ),
    "NaN axis": (
        lambda: changed("kv_budget", 9, np.nan),
        r"row 9, column kv_budget is nan; it must be a finite number",
    ),
    "same cell twice": (
        lambda: pa.concat_tables([RAW, RAW.slice(4, 1)]),
        r"rows 5 and 5401 are the same cell \(batch_size 1, kv_budget 0.1, spec_length 0, "
        r"quant_tier 0, prompt_len_bucket 4\)",
    ),
    "missing cell": (
        lambda: RAW.slice(2),
        r"2 of 5400 cells are missing, the first is batch_size 1, kv_budget 0.1, spec_length 0",
    ),
    "a time that depends on the KV budget": (
        lambda: changed("itl_ms", 121, 77.0),
        r"row 121, column itl_ms is 77, not what the same cell has at another kv_budget",
    ),
    "a lone prefill that depends on the batch": (
        lambda: with_column(
            "prefill_ms", RAW["prefill_ms"].to_numpy() * (1 + (RAW["batch_size"].to_numpy() == 4))
        ),
        r"column prefill_ms is .* at another batch_size; they must agree",
    ),
    "metadata not JSON": (
        lambda: RAW.replace_schema_metadata({"jaxserve": "{"}),
        r"the metadata is not valid JSON",
    ),
    "metadata incomplete": (
        lambda: RAW.replace_schema_metadata({"jaxserve": '{"model": "x"}'}),
        r"the metadata: hardware is missing; it must be a text",
    ),
    "metadata of the wrong type": (
        lambda: with_metadata(token_budget="many"),
        r"the metadata: token_budget is 'many'; it must be a whole number from 64",
    ),
    "fit error not a number": (
        lambda: with_metadata(fit_error=float("nan")),
        r"the metadata: fit_error is nan; it must be a finite number from 0",
    ),
    "calibration incomplete": (
        lambda: with_metadata(calibration={"tier": 0}),
        r"the metadata: calibration: kv_pool_tokens is missing",
    ),
    "calibration out of range": (
        lambda: with_metadata(calibration=CALIBRATION | {"depths": [99]}),
        r"calibration: depths is 99; it must be a whole number from 0 to 8",
    ),
    "cost model damaged": (
        lambda: with_metadata(cost_model={"host_s": 1.0}),
        r"cost_model: gpu is missing",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_file(case: str, tmp_path: Path) -> None:
    """Each kind of damage is named in one sentence, with file, row and column."""
    make, message = MALFORMED[case]
    path = written(tmp_path, make())
    with pytest.raises(InputError, match=message) as caught:
        read_table_file(path)
    assert str(caught.value).startswith(f"table file {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"batch_size,itl_ms\n1,2\n", b"PAR1 but not really PAR1"])
def test_not_a_parquet_file(content: bytes, tmp_path: Path) -> None:
    """Something else under the name of a table is refused."""
    path = tmp_path / "table.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a readable parquet file"):
        read_table_file(path)


def test_huge_file(tmp_path: Path) -> None:
    """A file that can not be a table is not read at all."""
    path = tmp_path / "table.parquet"
    with path.open("wb") as file:
        file.truncate(file_module.MAX_FILE_BYTES + 1)
    with pytest.raises(InputError, match=r"is larger than 64 MiB"):
        read_table_file(path)


def test_directory(tmp_path: Path) -> None:
    """A directory is not a table."""
    path = tmp_path / "table.parquet"
    path.mkdir()
    with pytest.raises(InputError, match=r"does not exist"):
        read_table_file(path)


def test_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash while writing leaves the previous table and nothing beside it."""
    path = tmp_path / "table.parquet"
    write_table_file(path, FILE)
    before = path.read_bytes()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        write_table_file(path, FILE)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_metadata_json_is_exact() -> None:
    """Constants of the cost model come back bit by bit."""
    assert TableMetadata.from_json(FILE.metadata.to_json()) == FILE.metadata


def test_axis_columns_enumerate_the_grid() -> None:
    """The axes run through every cell once, the prompt fastest."""
    axes = axis_columns(LEAST_BUCKETS)
    assert tuple(axes) == AXES
    cells = set(zip(*axes.values(), strict=True))
    assert len(cells) == ROWS
    np.testing.assert_array_equal(axes["prompt_len_bucket"][:9], [*range(8), 0])


def test_unknown_table() -> None:
    """A name that is not a table is answered with those that are."""
    with pytest.raises(InputError, match=f"table is 'gpt-5__abacus'; it must be one of .*{NAME}"):
        read_table_file("gpt-5__abacus")
    with pytest.raises(InputError, match=r"table file no/such\.parquet does not exist"):
        read_table_file("no/such.parquet")
