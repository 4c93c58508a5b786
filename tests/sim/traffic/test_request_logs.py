"""Logs of served requests: every format gives the same requests, and bad rows are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.reference import own_log
from jaxserve.sim.traffic.request_logs import load_request_log
from jaxserve.sim.traffic.trace_files.part import TracePart

# Arrival, prompt, output, first and last token; the second is written before the first.
_REQUESTS = [(12.0, 64, 1, 12.5, 12.5), (10.0, 512, 101, 10.25, 12.25)]


def _engine() -> str:
    names = ("queued_ts", "input_toks", "output_toks", "first_token_ts", "last_token_ts")
    rows = [dict(zip(names, row, strict=True)) for row in _REQUESTS]
    return "\n".join(map(json.dumps, [*rows, rows[0] | {"last_token_ts": None}]))


def _gateway() -> str:
    names = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "last_token_s")
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in _REQUESTS]
    rows = [row | {"arrival_unix_s": 1e9, "outcome": "completed"} for row in rows]
    return "\n".join(map(json.dumps, [*rows, rows[0] | {"outcome": "failed"}])) + "\n"


def _benchmark(**changes: Any) -> str:
    start, prompt, output, first, _ = zip(*_REQUESTS, strict=True)
    ttfts = [b - a for a, b in zip(start, first, strict=True)]
    result = {
        "start_times": [*start, 13.0],
        "input_lens": [*prompt, 5],
        "output_lens": [*output, 0],
        "ttfts": [*ttfts, 0.0],
        "itls": [[], [0.02] * 100, []],
        "errors": ["", "", "refused"],
        "mean_tpot_ms": 20.0,
    }
    return json.dumps(result | changes, indent=1)


@pytest.mark.parametrize("text", [_engine(), _gateway(), _benchmark()])
def test_every_format_gives_the_same(text: str, tmp_path: Path) -> None:
    """In order of arrival, without those that failed."""
    path = tmp_path / "log.json"
    path.write_text(text)
    log = load_request_log(path)
    assert log.trace.arrival_s.tolist() == [0.0, 2.0]
    assert log.trace.prompt_tokens.tolist() == [512, 64]
    assert log.trace.output_tokens.tolist() == [101, 1]
    assert log.trace.skipped == 1
    assert log.of_client == ("queued_ts" not in text)
    assert log.ttft_s is not None and log.tpot_s is not None
    np.testing.assert_allclose(log.ttft_s, [0.25, 0.5])
    np.testing.assert_allclose(log.tpot_s, [0.02, np.nan])


def test_requests_of_a_gateway_that_were_not_streamed(tmp_path: Path) -> None:
    """They belong to the load, and have no latencies; with none that was streamed there are no
    latencies at all. Several outputs of one request are no output of known length."""
    path = tmp_path / "records.jsonl"
    streamed, whole, *_ = map(json.loads, _gateway().splitlines())
    whole |= {"first_token_s": None, "last_token_s": None}
    several = streamed | {"parallel": True}
    path.write_text("\n".join(map(json.dumps, [streamed, whole, several])))
    log = load_request_log(path)
    assert log.trace.prompt_tokens.tolist() == [512, 64] and log.trace.skipped == 1
    assert log.ttft_s is not None
    np.testing.assert_allclose(log.ttft_s, [np.nan, 0.5])
    path.write_text(json.dumps(whole))
    assert load_request_log(path).ttft_s is None


def test_a_trace_tells_no_latencies(tmp_path: Path) -> None:
    """It is read as ``load_trace`` does."""
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n5,100,20\n7,50,10\n")
    log = load_request_log(path)
    assert log.trace.arrival_s.tolist() == [0.0, 2.0]
    assert log.ttft_s is None and log.tpot_s is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (_engine().replace("10.25", "9.0"), "line 2: its first token is before it"),
        (_engine().replace('"input_toks": 512', '"input_toks": 0'), "line 2: input_toks is 0;"),
        (_engine() + "\n{", "line 4: not a whole JSON object; the line is cut off"),
        (_benchmark(itls=[[]]), r"itls is \[\[\]\]; it must be a list with an entry for every"),
        (_benchmark(ttfts=["x", 0.25, 0]), "request 1: ttfts is 'x'; it must be a"),
        (_benchmark(output_lens=[0, 0, 0]), "holds no request that was served"),
        ("nothing", "which is no known trace"),
        ("", "is empty"),
    ],
)
def test_bad_logs(text: str, message: str, tmp_path: Path) -> None:
    """In one sentence, with the place."""
    path = tmp_path / "log.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_request_log(path)


def test_a_missing_file(tmp_path: Path) -> None:
    """Is named."""
    with pytest.raises(InputError, match=r"none\.json cannot be read"):
        load_request_log(tmp_path / "none.json")


def test_one_of_several_runs(tmp_path: Path) -> None:
    """``--append-result`` writes a line for each; the one that is meant has to be named."""
    path = tmp_path / "appended.jsonl"
    starts = ([0.0, 1.0, 2.0], [5.0, 9.0, 10.0])
    path.write_text("\n".join(json.dumps(json.loads(_benchmark(start_times=s))) for s in starts))
    with pytest.raises(InputError, match=r"holds 2 runs; say which \(--run 1 to 2\)"):
        load_request_log(path)
    assert load_request_log(path, run=2).trace.arrival_s.tolist() == [0.0, 4.0]
    with pytest.raises(InputError, match="run is 3; it must be a whole number from 1 to 2"):
        load_request_log(path, run=3)
    path.write_text(_engine())
    with pytest.raises(InputError, match="holds no runs"):
        load_request_log(path, run=1)


def test_a_log_in_milliseconds(tmp_path: Path) -> None:
    """A unit that is named holds for all of its times."""
    path = tmp_path / "log.jsonl"
    rows = [json.loads(line) for line in _engine().splitlines()]
    timed = [{k: 1e3 * v if k.endswith("_ts") and v else v for k, v in row.items()} for row in rows]
    path.write_text("\n".join(map(json.dumps, timed)))
    log = load_request_log(path, time_unit="ms")
    assert log.trace.arrival_s.tolist() == [0.0, 2.0]
    assert log.ttft_s is not None and log.tpot_s is not None
    np.testing.assert_allclose(log.ttft_s, [0.25, 0.5])
    np.testing.assert_allclose(log.tpot_s, [0.02, np.nan])


def test_results_without_start_times(tmp_path: Path) -> None:
    """Results of vLLM before 2026 and of SGLang are refused by a message that names the field."""
    result = json.loads(_benchmark())
    del result["start_times"]
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    with pytest.raises(InputError, match="does not say when requests were sent"):
        load_request_log(path)


@pytest.mark.parametrize("text", [_engine(), _gateway(), _benchmark()])
def test_a_part_of_a_log(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Latencies go with their requests, and what is left out is counted; more requests than are
    simulated are refused with the options that take fewer."""
    path = tmp_path / "log.json"
    path.write_text(text)
    log = load_request_log(path, part=TracePart("1s", "1h"))
    assert log.trace.prompt_tokens.tolist() == [64] and log.trace.arrival_s.tolist() == [0.0]
    assert log.ttft_s is not None and log.ttft_s.tolist() == [0.5]
    facts = log.trace.facts
    assert facts["left_out"] == {"failed": 1, "outside": 1, "not_sampled": 0}
    assert facts["rows_read"] == 3 and "--from 1s --for 1h of 2 requests" in log.trace.summary
    with pytest.raises(InputError, match="no request in the part; its last one is at 2 s"):
        load_request_log(path, part=TracePart("1h"))
    monkeypatch.setattr(own_log, "MAX_REQUESTS", 1)
    with pytest.raises(InputError, match=r"has 2 requests, and at most 1 are .*--for 2h.*--sample"):
        own_log.check_requests("log", load_request_log(path).trace)
