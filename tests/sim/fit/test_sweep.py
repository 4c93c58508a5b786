"""Measured sweeps: the formats that tools write are read, and bad input is named precisely."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.fit import runs as run_files
from jaxserve.sim.fit.sweep import MIN_ROWS, Sweep, read_sweep

HEADER = "max_concurrency,random_input_len,random_output_len,mean_ttft_ms,mean_tpot_ms"
ROWS = [[2**i, 512, 128, 20.0 + i, 7.0 + i / 2] for i in range(MIN_ROWS)]


def csv_text(header: str = HEADER, rows: list[list[object]] = ROWS) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def write(tmp_path: Path, text: str, name: str = "sweep.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def check(read: Sweep) -> None:
    """The sweep is ROWS."""
    concurrency, prompt, output, ttft_ms, tpot_ms = np.array(ROWS).T
    np.testing.assert_allclose(read.concurrency, concurrency)
    np.testing.assert_allclose(read.prompt_tokens, prompt)
    np.testing.assert_allclose(read.output_tokens, output)
    np.testing.assert_allclose(read.tpot_s, tpot_ms / 1e3)
    assert read.ttft_s is not None
    np.testing.assert_allclose(read.ttft_s, ttft_ms / 1e3)


@pytest.mark.parametrize(
    "header",
    [
        HEADER,
        "concurrency,input_len,output_len,median_ttft_ms,median_tpot_ms",
        "batch_size,isl,osl,p50_ttft_ms,itl",
        "Max Concurrency, Prompt-Len ,OUTPUT_LEN,ttft_ms,mean_itl_ms",
        "batch_size,isl,osl,silicon_ttft_ms,silicon_tpot_ms",
    ],
)
def test_column_names_of_several_tools(header: str, tmp_path: Path) -> None:
    """The spellings of common load generators mean the same."""
    check(read_sweep(write(tmp_path, csv_text(header))))


def test_other_statistics_are_passed_over(tmp_path: Path) -> None:
    """What else a benchmark reports does not get in the way, nor does a byte order mark."""
    header = HEADER + ",p99_ttft_ms,std_itl_ms,request_throughput,backend,date,tp_size"
    rows = [[*row, 99, 1, 5.5, "vllm", "2025-01-01", 1] for row in ROWS]
    check(read_sweep(write(tmp_path, "\ufeff" + csv_text(header, rows) + "\n\n")))


def test_first_statistic_counts(tmp_path: Path) -> None:
    """Mean TPOT is preferred to median, and median TTFT to mean."""
    header = HEADER + ",median_tpot_ms,median_ttft_ms"
    read = read_sweep(write(tmp_path, csv_text(header, [[*row, 1.0, 3.0] for row in ROWS])))
    np.testing.assert_allclose(read.tpot_s, np.array(ROWS)[:, 4] / 1e3)
    np.testing.assert_allclose(read.ttft_s, 0.003)


def test_parquet(tmp_path: Path) -> None:
    """A parquet file with the same columns is read alike."""
    path = tmp_path / "sweep.parquet"
    columns = dict(zip(HEADER.split(","), np.array(ROWS).T, strict=True))
    parquet.write_table(pa.table(columns), path)
    check(read_sweep(path))


def runs() -> list[dict[str, object]]:
    """What ``vllm bench serve --save-result`` writes of each run, shortened."""
    return [
        {
            "date": "20250101-000000",
            "backend": "vllm",
            "num_prompts": 1000,
            "max_concurrency": row[0],
            "completed": 1000,
            "total_input_tokens": 1000 * row[1],
            "total_output_tokens": 1000 * row[2],
            "mean_ttft_ms": row[3],
            "mean_tpot_ms": row[4],
            "rtfx": 0.0,
        }
        for row in ROWS
    ]


def test_json_of_a_benchmark(tmp_path: Path) -> None:
    """Saved results are read as a list or line by line; lengths follow from the totals."""
    check(read_sweep(write(tmp_path, json.dumps(runs()), "runs.json")))
    lines = "\n".join(json.dumps(run) for run in runs())
    check(read_sweep(write(tmp_path, lines, "runs.jsonl")))


def test_ttft_is_optional(tmp_path: Path) -> None:
    """A sweep of TPOT alone can be fitted."""
    header = HEADER.replace("mean_ttft_ms", "p99_ttft_ms")
    assert read_sweep(write(tmp_path, csv_text(header))).ttft_s is None


def test_select(tmp_path: Path) -> None:
    """Selected rows keep their values together."""
    read = read_sweep(write(tmp_path, csv_text()))
    some = read.select(read.concurrency > 8)
    assert len(some) == (read.concurrency > 8).sum()
    np.testing.assert_array_equal(some.tpot_s, read.tpot_s[read.concurrency > 8])
    assert some.ttft_s is not None and len(some.ttft_s) == len(some)


def broken(row: int, column: int, value: object) -> str:
    """CSV with one value replaced; rows and columns count from 1."""
    rows = [list(values) for values in ROWS]
    rows[row - 1][column - 1] = value
    return csv_text(rows=rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"it is empty; a load test looks like concurrency,input_len,output_len"),
        (HEADER + "\n", r"it has no rows; at least 8 are required"),
        (csv_text(rows=ROWS[:7]), r"it has 7 rows; at least 8 are required"),
        (broken(3, 5, "nan"), r"row 3, column mean_tpot_ms is nan; it must be a finite number"),
        (broken(3, 5, ""), r"row 3, column mean_tpot_ms is missing; it must be a finite number"),
        (broken(8, 4, "-1"), r"row 8, column mean_ttft_ms is -1.0; it must be a finite"),
        (broken(1, 5, 0), r"row 1, column mean_tpot_ms is 0.0; it must be a finite"),
        (broken(2, 5, "inf"), r"row 2, column mean_tpot_ms is inf; it must be a finite number"),
        (broken(2, 1, "many"), r"row 2, column max_concurrency is 'many'; it must be a finite"),
        (broken(2, 1, 0), r"row 2, column max_concurrency is 0.0; it must be .* from 1"),
        (broken(5, 2, 0.5), r"row 5, column random_input_len is 0.5; it must be .* from 1"),
        (broken(5, 3, 1), r"row 5, column random_output_len is 1.0; it must be .* from 2"),
        (broken(4, 3, "1,2"), r"row 4 has 6 values; the header has 5"),
        (csv_text(HEADER + ",meantpot", [[*r, 1] for r in ROWS]), r"column 'meantpot' is unknown; "
         r"known are concurrency: max_concurrency, concurrency, batch_size; prompt length: "),
        (csv_text(HEADER + ",meantpot,meanttft", [[*r, 1, 1] for r in ROWS]),
         r"columns 'meantpot', 'meanttft' are unknown; known are"),
        (csv_text(HEADER.replace("mean_tpot_ms", "date")), r"a column for TPOT is missing; known "),
        (csv_text(HEADER.replace("max_c", "c") + ",batch_size", [[*r, 1] for r in ROWS]),
         r"columns concurrency and batch_size both give the concurrency"),
        (csv_text(HEADER + ",mean_tpot_ms", [[*r, 1] for r in ROWS]),
         r"column 'mean_tpot_ms' appears twice"),
        (csv_text(HEADER + ",tp_size", [[*r, 1 + (r[0] == 4)] for r in ROWS]),
         r"row 3, column tp_size is '2'; it must be 1, which the fit is for"),
        (HEADER + "\n" + "9" * 200_000 + "\n", r"it is not a CSV file: field larger than"),
    ],
)  # fmt: skip
def test_malformed_csv(text: str, message: str, tmp_path: Path) -> None:
    """Each mistake is named in one sentence, with file, row and column."""
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        read_sweep(path)
    assert str(caught.value).startswith(f"sweep file {path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"it is not valid JSON"),
        ("[" * 100_000, r"it is not valid JSON: nested too deeply"),
        ("[1, 2]", r"it must hold JSON objects, one per run"),
        ("[]", r"it has no rows"),
        (json.dumps([*runs()[:7], {"completed": 1}]), r"row 8, column total_input_tokens is miss"),
        (json.dumps([*runs()[:7], {"date": 1}]), r"row 8, column completed is missing"),
        (
            json.dumps([{"time_to_first_token": 3, "isl_avg": 4}] * 8),
            r"it has isl_avg, time_to_first_token, which is no known load test; the nearest is "
            r"aiperf .* of which concurrency .* are missing; it looks like {",
        ),
        (json.dumps([run | {"max_concurrency": None} for run in runs()]), r"row 1, .* is missing"),
        (json.dumps([run | {"mean_tpot_ms": True} for run in runs()]), r"mean_tpot_ms is True"),
        (json.dumps([run | {"mean_tpot_ms": [5]} for run in runs()]), r"mean_tpot_ms is \[5\]"),
        (json.dumps([run | {"mean_tpot_ms": 10**400} for run in runs()]), r"a finite number"),
        (json.dumps([run | {"completed": "all"} for run in runs()]), r"column completed is 'all'"),
    ],
)
def test_malformed_json(text: str, message: str, tmp_path: Path) -> None:
    """The same for benchmark results."""
    with pytest.raises(InputError, match=message):
        read_sweep(write(tmp_path, text, "runs.json"))


def test_wrong_types_in_parquet(tmp_path: Path) -> None:
    """Text and nulls where numbers belong are found by row and column."""
    path = tmp_path / "sweep.parquet"
    columns: dict[str, list[object]] = {
        name: [row[i] for row in ROWS] for i, name in enumerate(HEADER.split(","))
    }
    parquet.write_table(pa.table(columns | {"mean_tpot_ms": [None, *[5.0] * 7]}), path)
    with pytest.raises(InputError, match=r"row 1, column mean_tpot_ms is missing"):
        read_sweep(path)
    parquet.write_table(pa.table(columns | {"mean_tpot_ms": ["fast"] * 8}), path)
    with pytest.raises(InputError, match=r"row 1, column mean_tpot_ms is 'fast'"):
        read_sweep(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"it is not a readable parquet file"):
        read_sweep(path)


def test_files_that_are_not_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, binary, oversized or oddly named files are refused before anything is parsed."""
    with pytest.raises(InputError, match=r"sweep file .*none.csv does not exist"):
        read_sweep(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"it must be a path that ends in .csv or .parquet"):
        read_sweep(write(tmp_path, csv_text(), "sweep.xlsx"))
    path = tmp_path / "sweep.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"it is not a UTF-8 text file"):
        read_sweep(path)
    with path.open("wb") as file:
        file.truncate(run_files.MAX_FILE_BYTES + 1)
    with pytest.raises(InputError, match=r"is larger than 256 MiB"):
        read_sweep(path)
    monkeypatch.setattr(run_files, "MAX_ROWS", 7)
    with pytest.raises(InputError, match=r"it has 8 rows; at most 7 are allowed"):
        read_sweep(write(tmp_path, csv_text()))


@pytest.mark.parametrize("rate", ["inf", "", "Infinity"])
def test_a_load_test_without_a_rate(rate: str, tmp_path: Path) -> None:
    """Requests follow each other at once."""
    header = "request_rate,concurrency,input_len,output_len,ttft_ms,tpot_ms"
    check(read_sweep(write(tmp_path, csv_text(header, [[rate, *row] for row in ROWS]))))


def test_an_open_loop_is_refused(tmp_path: Path) -> None:
    """Its requests in flight are not those of its column."""
    header = "request_rate,concurrency,input_len,output_len,ttft_ms,tpot_ms"
    path = write(tmp_path, csv_text(header, [[4, *row] for row in ROWS]))
    with pytest.raises(InputError, match=r"row 1, column request_rate is '4'; it must be inf"):
        read_sweep(path)


def test_what_a_benchmark_counted_stands_before_what_was_asked(tmp_path: Path) -> None:
    """Lengths that were drawn or cut are those of the totals, in JSON and CSV; the concurrency is
    the one that was asked for."""
    nominal = {"random_input_len": 7777, "random_output_len": 8888, "concurrency": 1.5}
    measured = [run | nominal for run in runs()]
    check(read_sweep(write(tmp_path, json.dumps(measured), "runs.json")))
    header = ",".join(measured[0])
    text = csv_text(header, [list(run.values()) for run in measured])  # a column rtfx as well
    check(read_sweep(write(tmp_path, text)))


OTHERS = [
    ({"failed": 300, "completed": 700}, "in row 1 30% of the requests failed"),
    (
        {"completed": 1, "total_input_tokens": 512, "total_output_tokens": 99},
        "100% of the requests",
    ),
    ({"num_prompts": 4, "completed": 4}, "fewer than 3 requests for each one in flight"),
    ({"spec_decode_acceptance_length": 1.75}, "it must be that of an engine without drafts"),
    ({"spec_decode_num_drafts": 1000}, "it must be that of an engine without drafts"),
    ({"accept_length": 2.5}, "it must be that of an engine without drafts"),
    ({"max_num_seqs": 2}, "had more requests in flight than the engine runs"),
    ({"max_num_batched_tokens": 4096}, "it must be 2048, which the fit is for"),
    ({"tp_size": 2}, "it must be 1, which the fit is for"),
    ({"request_rate": 3.5}, "it must be inf"),
]


@pytest.mark.parametrize(("columns", "message"), OTHERS)
def test_runs_that_are_something_else_are_refused(
    columns: dict[str, object], message: str, tmp_path: Path
) -> None:
    """A column that says that a row is no steady state of a plain engine is looked at, whatever the
    file's form."""
    others = [run | columns for run in runs()]
    with pytest.raises(InputError, match=message):
        read_sweep(write(tmp_path, json.dumps(others), "runs.json"), token_budget=2048)
    text = csv_text(",".join(others[0]), [list(run.values()) for run in others])
    with pytest.raises(InputError, match=message):
        read_sweep(write(tmp_path, text), token_budget=2048)


@pytest.mark.parametrize(
    "columns",
    [
        {"accept_length": None},
        {"accept_length": 1.0},
        {"spec_decode_acceptance_length": ""},
        {"max_num_seqs": 1024, "max_num_batched_tokens": 2048, "run_number": 3},
        {"failed": 0},
    ],
)
def test_columns_that_say_nothing_else(columns: dict[str, object], tmp_path: Path) -> None:
    """An engine without drafts may say so."""
    rows = [run | columns for run in runs()]
    check(read_sweep(write(tmp_path, json.dumps(rows), "runs.json"), token_budget=2048))


def test_a_few_failures_are_said(tmp_path: Path) -> None:
    """One request of a thousand changes little."""
    rows = [*runs()[:7], runs()[7] | {"failed": 1, "num_prompts": 1001}]
    with pytest.warns(InputWarning, match="requests failed in row 8"):
        check(read_sweep(write(tmp_path, json.dumps(rows), "runs.json")))
