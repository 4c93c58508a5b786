"""Single requests that load generators have written: arrivals, lengths and latencies in seconds."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.request_logs import RequestLog, load_request_log

START_S = 1_759_813_207.25
UNITS = {"ms": 1e3, "ns": 1e9, "s": 1.0}


def drawn(draw: random.Random) -> np.ndarray:
    """Requests, float64[n, 5]: start, prompt, output, TTFT and TPOT (NaN for one token)."""
    count = draw.randrange(1, 12)
    rows = np.array(
        [
            [0.25 * i, draw.randrange(1, 9000), draw.randrange(1, 4), 0.5, draw.uniform(1e-3, 0.1)]
            for i in range(count)
        ]
    )
    rows[rows[:, 2] == 1, 4] = np.nan
    return rows


def aiperf(rows: np.ndarray, failed: int, draw: random.Random) -> str:
    """Records of AIPerf, in any order, with failed and cancelled ones."""
    lines: list[dict[str, Any]] = []
    for start_s, prompt, output, ttft_s, tpot_s in rows:
        metrics = {
            "input_sequence_length": {"value": int(prompt), "unit": "tokens"},
            "output_sequence_length": {"value": int(output), "unit": "tokens"},
        }
        for name, time_s in (("time_to_first_token", ttft_s), ("inter_token_latency", tpot_s)):
            unit = draw.choice([*UNITS])
            if time_s == time_s:
                metrics[name] = {"value": UNITS[unit] * time_s, "unit": unit}
        meta = {"request_start_ns": int(1e9 * (START_S + start_s)), "was_cancelled": False}
        lines.append({"metadata": meta, "metrics": metrics, "error": None})
    for i in range(failed):
        error, cancelled = draw.choice([({"code": 500}, False), (None, True)])
        meta = {"request_start_ns": int(1e9 * START_S) + i, "was_cancelled": cancelled}
        lines.append({"metadata": meta, "metrics": {}, "error": error})
    draw.shuffle(lines)
    return "".join(json.dumps(line) + "\n" for line in lines)


def guidellm(rows: np.ndarray, failed: int, draw: random.Random) -> str:
    """A report of GuideLLM; the start stands where its versions have it."""
    version = draw.randrange(3)
    served = []
    for start_s, prompt, output, ttft_s, tpot_s in rows:
        start = START_S + start_s
        served.append(
            [
                {"info": {"timings": {"request_start": start}}, "request_start_time": start},
                {"request_start_time": start},
                {"start_time": start},
            ][version]
            | {
                "prompt_tokens": int(prompt),
                "output_tokens": int(output),
                "time_to_first_token_ms": 1e3 * ttft_s,
                "time_per_output_token_ms": 12345.0,
                "inter_token_latency_ms": None if np.isnan(tpot_s) else 1e3 * tpot_s,
            }
        )
    lost = {"errored": [{}] * failed, "incomplete": []}
    report = {"benchmarks": [{"requests": {"successful": served} | lost}]}
    return json.dumps(report, indent=draw.choice([None, 2]))


WRITERS = {"aiperf.jsonl": aiperf, "guidellm.json": guidellm}


@pytest.mark.parametrize("name", WRITERS)
@given(seed=st.integers(0, 2**32), failed=st.integers(0, 3))
def test_truth(name: str, seed: int, failed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In any unit, order and version; requests that were not served are counted."""
    draw = random.Random(seed)
    rows = drawn(draw)
    path = tmp_path_factory.mktemp("log") / name
    path.write_text(WRITERS[name](rows, failed, draw), encoding="utf-8")
    log = load_request_log(path)
    assert log.trace.skipped == failed
    np.testing.assert_allclose(_table(log), rows, rtol=1e-9, atol=1e-6)


def _table(log: RequestLog) -> np.ndarray:
    assert log.ttft_s is not None and log.tpot_s is not None
    trace = log.trace
    return np.stack(
        [trace.arrival_s, trace.prompt_tokens, trace.output_tokens, log.ttft_s, log.tpot_s]
    ).T


def test_a_run_has_to_be_named(tmp_path: Path) -> None:
    """A report holds a run for each rate."""
    path = tmp_path / "two.json"
    one, other = (
        json.loads(guidellm(drawn(random.Random(i)), i, random.Random(i)))["benchmarks"][0]
        for i in (1, 2)
    )
    path.write_text(json.dumps({"benchmarks": [one, other]}), encoding="utf-8")
    with pytest.raises(InputError, match=r"holds 2 runs; say which \(--run 1 to 2\)"):
        load_request_log(path)
    assert load_request_log(path, 2).trace.skipped == 2
    with pytest.raises(InputError, match="run is 3; it must be"):
        load_request_log(path, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": {}}, "request 1: metrics.input_sequence_length.value is missing"),
        ({"metadata": {"request_start_ns": "soon"}}, "metadata.request_start_ns is 'soon'"),
    ],
)
def test_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A request that was served has everything."""
    line = json.loads(aiperf(np.array([[0, 5, 5, 0.1, 0.1]]), 0, random.Random(0)))
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(line | change), encoding="utf-8")
    with pytest.raises(InputError, match=message):
        load_request_log(path)
    path.write_text(json.dumps(line), encoding="utf-8")
    with pytest.raises(InputError, match="times of known units"):
        load_request_log(path, time_unit="ms")
    with pytest.raises(InputError, match="no runs"):
        load_request_log(path, 1)


def test_a_load_test_is_no_log(tmp_path: Path) -> None:
    """The error says what the file is."""
    path = tmp_path / "agg.json"
    path.write_text('{"tput_per_gpu": 3}', encoding="utf-8")
    with pytest.raises(InputError, match=r"InferenceX .* which is a load test and no log"):
        load_request_log(path)
