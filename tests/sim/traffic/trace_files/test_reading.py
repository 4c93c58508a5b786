"""Every format gives back what was recorded, whatever else a file has; parts are what they say."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files import text
from jaxserve.sim.traffic.trace_files.formats import LAYOUTS, TIME_UNITS, Layout
from jaxserve.sim.traffic.trace_files.part import TracePart
from jaxserve.sim.traffic.traces import load_trace
from jaxserve.studies.fidelity.measurements import shared_data
from tests.examples_drawn import MANY

SHARED = shared_data()
_FIRST = datetime.datetime(2024, 2, 28, 23, 59, 50, tzinfo=datetime.UTC)
_DATED_S = 1_700_000_000
_EXTRA = {"Region": "eu, west", "status": 200, "Total tokens": 9, "Ж": '"x"'}

Recorded = list[tuple[int, int, int]]
"""Milliseconds after the first request, prompt and output tokens; no output tokens: it failed."""


@st.composite
def recordings(draw: st.DrawFn) -> Recorded:
    """Requests at different times, with a plausible rate in the right unit."""
    count = draw(st.integers(12, 40))
    gaps = draw(st.lists(st.integers(20, 900), min_size=count, max_size=count))
    lengths = st.tuples(st.integers(1, 9_000), st.integers(0, 900))
    sizes = draw(st.lists(lengths, min_size=count, max_size=count))
    times = np.cumsum([0, *gaps[1:]]).tolist()
    return [(time, *size) for time, size in zip(times, sizes, strict=True)]


def written(recorded: Recorded, layout: Layout, unit: str, start_s: int, draw: st.DrawFn) -> bytes:
    """A file of the format, with columns in any order and further ones."""
    rows: list[dict[str, Any]] = []
    zone = draw(st.sampled_from([None, datetime.timezone(datetime.timedelta(hours=-7))]))
    for number, (after_ms, prompt, output) in enumerate(recorded):
        time: Any = start_s * int(TIME_UNITS[unit]) + after_ms * TIME_UNITS[unit] / 1e3
        if layout.unit is None:
            at = _FIRST + datetime.timedelta(milliseconds=after_ms)
            time = at.strftime("%Y-%m-%d %H:%M:%S.%f")
            time = time if zone is None else at.astimezone(zone).isoformat(sep=" ")
        row = dict(zip(layout.columns, (time, prompt, output), strict=True))
        if layout.block_tokens:
            row["hash_ids"] = list(range(-(-prompt // layout.block_tokens)))
        rows.append(row | ({"chat_id": number} if layout.name == "bailian" else {}))
    extra = draw(st.sets(st.sampled_from(list(_EXTRA))))
    order = draw(st.permutations([*rows[0], *extra]))
    rows = [{name: (row | _EXTRA)[name] for name in order} for row in rows]
    if layout.block_tokens:
        content = "\n".join(json.dumps(row) for row in rows)
    else:
        file = io.StringIO()
        end = draw(st.sampled_from(["\n", "\r\n"]))
        writer = csv.DictWriter(file, order, lineterminator=end)
        writer.writeheader()
        writer.writerows(rows)
        content = file.getvalue()
    data = content.encode() + draw(st.sampled_from([b"", b"\n", b" \n\n"]))
    return gzip.compress(data) if draw(st.booleans()) else data


def read(data: bytes, folder: Path, block_bytes: int, **options: Any) -> Any:
    """The trace of a file that is read in blocks of that many bytes."""
    path = folder / "trace"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block_bytes)
        return load_trace(path, **options)


@MANY
@given(
    data=st.data(),
    recorded=recordings(),
    format=st.sampled_from(list(LAYOUTS)),
    start_s=st.sampled_from([0, 12_345, _DATED_S]),
    block_bytes=st.integers(16, 3_000),
)
def test_what_was_recorded_comes_back(
    data: st.DataObject,
    recorded: Recorded,
    format: str,
    start_s: int,
    block_bytes: int,
    tmp_path_factory: Any,
) -> None:
    """In any unit, order of columns and size of blocks, with failed rows, which are counted. A unit
    that is not the format's is named, or the file is refused and the unit asked for."""
    layout = LAYOUTS[format]
    unit = data.draw(st.sampled_from(list(TIME_UNITS)))
    named = layout.unit is not None and data.draw(st.booleans())
    if start_s < _DATED_S and not named:
        unit = layout.unit or unit  # nothing but a rate tells the unit of a relative clock
    content = written(recorded, layout, unit, start_s, data.draw)
    served = [row for row in recorded if row[2]]
    options = {"time_unit": unit} if named else {}
    try:
        trace = read(content, tmp_path_factory.getbasetemp(), block_bytes, **options)
    except InputError as error:
        asked = not named and layout.unit is not None and "--time-unit" in str(error)
        assert asked or (not served and "only failed ones" in str(error))
        if asked and format in ("mooncake", "bailian", "burstgpt"):
            assert unit != layout.unit
        return
    times, prompts, outputs = np.array(served).T
    np.testing.assert_allclose(trace.arrival_s, (times - times[0]) / 1e3, atol=2e-6)
    assert trace.prompt_tokens.tolist() == prompts.tolist()
    assert trace.output_tokens.tolist() == outputs.tolist()
    assert trace.facts["rows_read"] == len(recorded)
    assert trace.facts["left_out"] == {"failed": len(recorded) - len(served)}


@given(
    data=st.data(),
    recorded=recordings(),
    format=st.sampled_from(["azure", "burstgpt", "bailian"]),
    start=st.floats(0.0, 12.0),
    length=st.floats(0.5, 12.0),
    sample=st.none() | st.floats(0.2, 0.9),
    block_bytes=st.integers(64, 3_000),
)
def test_a_part_is_what_it_says(
    data: st.DataObject,
    recorded: Recorded,
    format: str,
    start: float,
    length: float,
    sample: float | None,
    block_bytes: int,
    tmp_path_factory: Any,
) -> None:
    """A part has the requests of its span, in any size of blocks, and no row is lost to the
    count; one that is empty is refused. A sample is the same every time."""
    folder = tmp_path_factory.getbasetemp()
    content = written(recorded, LAYOUTS[format], LAYOUTS[format].unit or "s", 0, data.draw)
    part = TracePart(f"{start:.3f}s", f"{length:.3f}s", sample)
    begin, end = round(start, 3), round(start, 3) + round(length, 3)
    inside = [row for row in recorded if begin <= row[0] / 1e3 < end]
    served = [row for row in inside if row[2]]
    try:
        trace = read(content, folder, block_bytes, part=part)
    except InputError as error:
        assert not served or sample is not None
        assert "in the part --from" in str(error) or "only failed ones" in str(error)
        return
    facts = trace.facts
    assert facts["rows_read"] == len(recorded)
    assert facts["left_out"]["outside"] == len(recorded) - len(inside)
    assert facts["whole"]["requests"] == sum(row[2] > 0 for row in recorded)
    assert f"--from {part.start} --for {part.length}" in trace.summary
    if sample is None:
        assert trace.prompt_tokens.tolist() == [row[1] for row in served]
    else:
        again = read(content, folder, 10_000_000, part=part)
        assert again.arrival_s.tolist() == trace.arrival_s.tolist()
        assert f"lowers the rate to {sample:.3g}" in trace.summary


@pytest.mark.skipif(SHARED is None, reason="the traces are not on this machine")
@pytest.mark.parametrize(
    ("file", "requests", "span_s", "prompt", "output"),
    [
        ("traces/AzureLLMInferenceTrace_conv.csv", 19_366, 3501.7, 1154.7, 211.1),
        ("traces/AzureLLMInferenceTrace_code.csv", 8_819, 3435.9, 2047.8, 27.9),
        ("mooncake/conversation_first_half.jsonl.gz", 6_000, 1872.0, 12_773.9, 347.0),
    ],
)
def test_public_traces(
    file: str, requests: int, span_s: float, prompt: float, output: float
) -> None:
    """Their statistics are those that csv and json count."""
    assert SHARED is not None
    trace = load_trace(SHARED / file)
    assert len(trace) == requests
    assert round(float(trace.prompt_tokens.mean()), 1) == prompt
    assert round(float(trace.output_tokens.mean()), 1) == output
    assert trace.duration_s == pytest.approx(span_s, abs=3.0)
