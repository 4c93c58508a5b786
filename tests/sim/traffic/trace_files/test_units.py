"""A file in another unit than its format has is refused, and the unit asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.request_logs import load_request_log
from jaxserve.sim.traffic.trace_files.formats import TIME_UNITS
from jaxserve.sim.traffic.trace_files.units import check_clock
from jaxserve.sim.traffic.traces import load_trace

BURSTGPT = "Timestamp,Request tokens,Response tokens\n"


def json_lines(path: Path, times: list[float], **fields: object) -> Path:
    """Requests of 600 tokens in the fields that Mooncake, GuideLLM and vLLM share."""
    row = {"input_length": 600, "output_length": 4} | fields
    path.write_text("\n".join(json.dumps({"timestamp": time} | row) for time in times))
    return path


@pytest.mark.parametrize("scale", [1, 1000, 0.5])
def test_lines_without_hash_ids_do_not_tell(scale: float, tmp_path: Path) -> None:
    """A replay in whole seconds looks like one in milliseconds, at 0.1 or 100 requests a second."""
    path = json_lines(tmp_path / "replay.jsonl", [10 * scale * i for i in range(40)])
    with pytest.raises(InputError, match=r"--time-unit s or --time-unit ms") as caught:
        load_trace(path)
    assert f"{0.1 / scale * 40 / 39:.3g} in s, {100 / scale * 40 / 39:.3g} in ms" in str(
        caught.value
    )
    assert load_trace(path, time_unit="s").duration_s == 390 * scale
    assert load_trace(path, format="mooncake").time_unit == "ms"


def test_what_tells_the_unit_of_lines(tmp_path: Path) -> None:
    """Blocks of 512 tokens, of 16, or a rate that no deployment has."""
    times = [3.0 * i for i in range(40)]
    path = tmp_path / "replay.jsonl"
    assert load_trace(json_lines(path, times, hash_ids=[1, 2])).duration_s == 0.117
    assert load_trace(json_lines(path, times, hash_ids=list(range(38)))).duration_s == 117.0
    assert load_trace(json_lines(path, [time / 6 for time in times])).duration_s == 19.5
    with pytest.raises(InputError, match="does not tell"):  # blocks of neither
        load_trace(json_lines(path, times, hash_ids=list(range(10))))


@given(
    unit=st.sampled_from(list(TIME_UNITS)),
    read=st.sampled_from(list(TIME_UNITS)),
    rate=st.floats(0.1, 300.0),
    dated=st.booleans(),
)
def test_a_wrong_unit_is_seen(unit: str, read: str, rate: float, dated: bool) -> None:
    """A date always tells another unit; a rate does where it is not plausible. The right unit is
    never refused."""
    span = 999 / rate * TIME_UNITS[unit]
    first = 1.7e9 * TIME_UNITS[unit] if dated else 0.0
    read_rate = rate * TIME_UNITS[read] / TIME_UNITS[unit]
    try:
        check_clock("log.csv", read, 1000, first, span)
        assert unit == read or (not dated and 1 / 300 < read_rate < 1000.1)
    except InputError as error:
        assert unit != read and f"--time-unit {read}" in str(error)
        assert not dated or f"--time-unit {unit}" in str(error)


def test_a_log_of_an_engine_in_milliseconds(tmp_path: Path) -> None:
    """Its times say no unit, and are not taken for seconds."""
    names = ("queued_ts", "first_token_ts", "last_token_ts")
    rows = [
        dict(zip(names, (1e6 * i, 1e6 * i + 50, 1e6 * i + 900), strict=True)) for i in range(20)
    ]
    path = tmp_path / "log.jsonl"
    lengths = {"input_toks": 9, "output_toks": 9}
    path.write_text("\n".join(json.dumps(row | lengths) for row in rows))
    with pytest.raises(InputError, match="--time-unit s or --time-unit ms"):
        load_request_log(path)
    log = load_request_log(path, time_unit="ms")
    assert log.trace.duration_s == 19_000.0 and log.ttft_s is not None and log.ttft_s[0] == 0.05


def test_a_csv_of_milliseconds_is_not_taken_for_seconds(tmp_path: Path) -> None:
    """Nor one of GuideLLM's, whose header no format with a unit has."""
    path = tmp_path / "trace.csv"
    path.write_text(BURSTGPT + "\n".join(f"{500 * i},9,9" for i in range(100)))
    with pytest.raises(InputError, match=r"0\.00202 in s, 2\.02 in ms"):
        load_trace(path)
    path.write_text("timestamp,input_length,output_length\n0,9,9\n2,9,9\n")
    with pytest.raises(InputError, match="name it"):
        load_trace(path)
    assert load_trace(path, time_unit="s").duration_s == 2.0
