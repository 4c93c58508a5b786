"""Files of load tests of every format give the truth or a refusal, and never another number."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.file_formats import file_formats
from jaxserve.sim.fit.runs import read_runs
from jaxserve.sim.fit.sweep import Sweep, read_sweep
from jaxserve.sim.traffic.request_logs import load_request_log
from tests.examples_drawn import MANY
from tests.sim.fit.load_test_files import DAMAGE, WRITERS, Run, aiperf, drawn, with_junk, written


def test_every_format_has_a_writer() -> None:
    """No format of load tests is left out of the property."""
    assert set(WRITERS) == {each.name for each in file_formats() if "load test" in each.gives}


@pytest.mark.parametrize("name", WRITERS)
@given(seed=st.integers(0, 2**32), damage=st.sampled_from([None, None, *DAMAGE]))
def test_truth_or_refusal(
    name: str, seed: int, damage: str | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever the units, the order of fields and what else a file has."""
    draw = random.Random(seed)
    runs = drawn(draw)
    if damage is not None:
        place = draw.randrange(len(runs))
        runs[place] = runs[place]._replace(requests=400, **DAMAGE[damage])
    if damage == "failed" and name == "sglang-bench":
        damage = None  # the format counts no failures but by num_prompts, which is an extra here
        runs[place] = runs[place]._replace(failed=0)
    paths = written(tmp_path_factory.mktemp("runs"), name, runs, draw)
    if damage is not None:
        with pytest.raises(InputError, match="sweep file"):
            read_sweep(paths)
        return
    check(read_sweep(paths), runs)


@pytest.mark.filterwarnings("ignore::jaxserve.errors.InputWarning")
@pytest.mark.parametrize("name", WRITERS)
@given(seed=st.integers(0, 2**32))
@MANY
def test_junk_is_refused_in_a_sentence(
    name: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Or stands where nothing is read."""
    draw = random.Random(seed)
    rows = [WRITERS[name](run, random.Random(seed)) for run in drawn(draw)]
    path = tmp_path_factory.mktemp("junk") / "runs.json"
    document = {"benchmarks": rows} if name == "guidellm" else rows
    path.write_text(json.dumps(with_junk(document, draw)), encoding="utf-8")
    for read in (read_sweep, load_request_log):
        with contextlib.suppress(InputError):
            read(path)


def check(sweep: Sweep, runs: list[Run]) -> None:
    """The sweep is that of the runs, in any order of files."""
    assert sweep.ttft_s is not None
    found = np.stack(
        [sweep.concurrency, sweep.prompt_tokens, sweep.output_tokens, sweep.tpot_s, sweep.ttft_s]
    ).T
    truth = [[r.concurrency, r.prompt, r.output, r.tpot_ms / 1e3, r.ttft_ms / 1e3] for r in runs]
    np.testing.assert_allclose(found, truth, rtol=1e-6)


def test_what_was_understood_is_one_line(tmp_path: Path) -> None:
    """Format, settings, times, requests and rate; and how many requests the times leave out."""
    draw = random.Random(1)
    runs = [run._replace(requests=1000 * run.concurrency, failed=3) for run in drawn(draw)]
    (path,) = written(tmp_path, "guidellm", runs, draw)
    with pytest.warns(Warning, match="requests failed in rows 1, 2"):
        sweep = read_sweep(path)
    assert sweep.note.startswith("report.json: 8 rows (guidellm), 1 to 16 in flight, prompts of ")
    assert "TPOT" in sweep.note and "\n" not in sweep.note
    assert sweep.note.endswith("; 24 that failed and 16 that were cut off are left out")
    assert sweep.left_out == 40


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"inter_token_latency": {"unit": "fortnights", "avg": 1.0}},
            r"row 1, column inter_token_latency.unit is 'fortnights'; it must be one of s, sec",
        ),
        (
            {"input_config": {}},
            r"a column for concurrency is missing; known are input_config",
        ),
        ({"was_cancelled": True}, r"row 1, column was_cancelled is True; it must be false"),
    ],
)
def test_refusals_of_nested_fields(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    """They are named by their path."""
    run = drawn(random.Random(2))[0]
    path = tmp_path / "aiperf.json"
    path.write_text(json.dumps(aiperf(run, random.Random(3)) | row), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_sweep(path)


@pytest.mark.parametrize(
    "text",
    [
        "Metric,avg,min,max\nInter Token Latency (ms),8.00,7.50,9.10\n\nMetric,Value\nCount,160\n",
        "Run Info,Run Info,Timings\nModel,Backend,Duration\n,,Sec\nllama,openai_http,30.1\n",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4808,10\n",
    ],
)
def test_tables_that_are_no_load_test(text: str, tmp_path: Path) -> None:
    """They are named, with what to use instead, and not read as columns."""
    path = tmp_path / "export.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"JSON file of the same run|a trace and no load test"):
        read_runs(path)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    """Fields that mean the same column do not hide each other."""
    path = tmp_path / "twice.json"
    path.write_text('[{"completed": 1, "Completed": 2}]', encoding="utf-8")
    with pytest.raises(InputError, match="'completed' appears twice"):
        read_runs(path)
