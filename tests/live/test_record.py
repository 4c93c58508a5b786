"""Records of the gateway as a trace."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.gateway.measure.records import Records, RequestRecord
from jaxserve.live.record import record, summary
from jaxserve.sim.traffic.traces import load_trace

START_S = 1_700_000_000.0


def line(number: int, arrival_s: float = 0.0, **changes: Any) -> str:
    """A record as the gateway writes it."""
    fields = {
        "id": str(number),
        "dialect": "chat",
        "arrival_unix_s": START_S + arrival_s,
        "arrival_s": 7.0 + arrival_s,
        "prompt_tokens": 10 + number,
        "output_tokens": 5,
        "outcome": "completed",
    }
    return json.dumps(dataclasses.asdict(RequestRecord(**fields | changes)))


def written(folder: Path, *lines: str) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


def load(folder: Path, data: bytes) -> Any:
    path = folder / "trace.csv"
    path.write_bytes(data)
    return load_trace(path)


@given(
    requests=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**6)),
        min_size=1,
        max_size=20,
        unique=True,
    )
)
def test_a_trace_has_every_request(
    requests: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Times, to a microsecond, and tokens are those of the records, in order of arrival."""
    folder = tmp_path_factory.mktemp("records")
    lines = [
        line(i, time_us / 1e6, prompt_tokens=prompt, output_tokens=output)
        for i, (time_us, prompt, output) in enumerate(requests)
    ]
    trace = load(folder, record(written(folder, *lines)).csv)
    times, prompts, outputs = np.array(sorted(requests)).T
    np.testing.assert_allclose(trace.arrival_s, (times - times[0]) / 1e6, atol=2e-6)
    assert trace.prompt_tokens.tolist() == prompts.tolist()
    assert trace.output_tokens.tolist() == outputs.tolist()


def test_what_engines_found_cached_is_said(tmp_path: Path) -> None:
    """Of the requests whose engines told."""
    path = written(
        tmp_path,
        line(0, prompt_tokens=100, cached_tokens=48),
        line(1, prompt_tokens=100, cached_tokens=0),
        line(2, prompt_tokens=100),
    )
    assert record(path).cached_share == pytest.approx(0.24)
    assert "24% of the prompt tokens were found in a prefix cache" in summary(record(path))
    assert record(written(tmp_path, line(0))).cached_share is None


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """By the reason."""
    path = written(
        tmp_path,
        line(0, 9.0),
        line(1, 4.0),
        line(2, outcome="cancelled"),
        line(3, outcome="failed", prompt_tokens=None),
        line(4, outcome="rejected"),
        line(5, prompt_tokens=None),
        line(6, output_tokens=0),
        line(7, parallel=True),
        line(8)[:40],
        "",
    )
    recording = record(path)
    assert recording.requests == 2
    assert recording.dropped == {
        "cancelled": 1,
        "failed": 1,
        "rejected": 1,
        "tokens not counted": 1,
        "no tokens": 1,
        "several outputs": 1,
        "unfinished line": 1,
    }
    assert "2 requests in 5.0 s; 7 left out (1 cancelled, 1 failed" in summary(recording)
    trace = load(tmp_path, recording.csv)
    assert trace.arrival_s.tolist() == [0.0, 5.0]
    assert trace.prompt_tokens.tolist() == [11, 10]


def test_it_reads_what_the_gateway_writes(tmp_path: Path) -> None:
    """Field by field."""
    records = Records(kept=5, path=tmp_path / "records.jsonl")
    counted = {"prompt_tokens": 3, "output_tokens": 4, "outcome": "completed"}
    records.add(RequestRecord("a", "chat", START_S, 1.0, **counted))
    records.close()
    assert record(tmp_path / "records.jsonl").csv.splitlines()[1:] == [b"0.000000,3,4"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "it is empty"),
        (("a,b", "1,2"), "(2 unfinished line)"),
        ((line(1), line(1)), "line 2: request 1 is in the file twice"),
        (('{"timestamp": 3}',), "line 1: field 'timestamp' is unknown"),
        (("[1]",), "line 1 is [1]; it must be a JSON object"),
        ((line(1, prompt_tokens=-3),), "line 1: prompt_tokens is -3; it must be a whole number"),
        ((line(1, prompt_tokens="3"),), "line 1: prompt_tokens is '3'"),
        ((line(1, outcome="odd"),), "line 1: outcome is 'odd'; it must be one of"),
        ((line(1, arrival_s=-1e12),), "line 1: arrival_unix_s is"),
        ((line(1, outcome="failed"),), "holds no completed request"),
    ],
)
def test_nonsense_is_refused(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    """In one sentence."""
    with pytest.raises(InputError) as error:
        record(written(tmp_path, *lines))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file(tmp_path: Path) -> None:
    """Is said so."""
    with pytest.raises(InputError, match="cannot be read: No such file"):
        record(tmp_path / "none.jsonl")
