"""Parts of a trace: how they are stated, and what a sample does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files.part import TracePart
from jaxserve.sim.traffic.traces import Trace, load_trace


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four hours of Poisson arrivals, two a second, in calendar times with an offset."""
    rng = np.random.default_rng(0)
    after_us = np.sort(rng.integers(0, 4 * 3600 * 10**6, 28_800)).astype("timedelta64[us]")
    stamps = np.datetime_as_string(np.datetime64("2024-05-12T06:00:00.000000") + after_us)
    rows = (f"{time}+00:00,{1 + i % 700},9" for i, time in enumerate(stamps.tolist()))
    path = tmp_path_factory.mktemp("part") / "hours.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]))
    return path


def taken(path: Path, *part: str | float | None) -> Trace:
    """A part of the file."""
    return load_trace(path, part=TracePart(*part))  # pyright: ignore[reportArgumentType]


def test_a_time_of_the_file_and_a_duration_say_the_same(hours: Path) -> None:
    """The first request is a few milliseconds after six o'clock."""
    by_time = taken(hours, "2024-05-12 07:00:00+00:00", "30min")
    by_duration = taken(hours, "1h", "0.5h")
    assert by_time.summary.startswith(f"{len(by_time):,} requests in 30 min, ")
    assert abs(len(by_time) - len(by_duration)) < 5
    assert "--from 1h --for 0.5h of 28,800 requests in 4 h, 2/s" in by_duration.summary
    assert len(taken(hours, None, "90s")) == pytest.approx(180, abs=60)
    assert taken(hours, None, "1d").duration_s == load_trace(hours).duration_s


def test_a_sample_lowers_the_rate_alone(hours: Path) -> None:
    """The span and the lengths stay."""
    whole, half, tenth = load_trace(hours), *(taken(hours, None, None, s) for s in (0.5, 0.1))
    assert len(half) == pytest.approx(14_400, rel=0.05)
    assert len(tenth) == pytest.approx(2_880, rel=0.1)
    assert tenth.duration_s == pytest.approx(whole.duration_s, rel=0.01)
    assert tenth.prompt_tokens.mean() == pytest.approx(whole.prompt_tokens.mean(), rel=0.05)
    assert tenth.facts["left_out"] == {
        "failed": 0,
        "outside": 0,
        "not_sampled": 28_800 - len(tenth),
    }


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ((None, "2"), "--for is '2'; it must be a duration such as 90s, 30min, 2h or 1d"),
        ((None, "0h"), "--for is '0h'"),
        ((None, "-2h"), "--for is '-2h'"),
        ((None, None, 0.0), "--sample is 0.0; it must be a share between 0 and 1"),
        ((None, None, 10.0), "--sample is 10.0"),
        ((None, None, float("nan")), "--sample is nan"),
        (("noon",), r"--from is 'noon'; of .*hours.csv it must be .* or a time like .*\+00:00"),
        (("2024-05-12 07:00:00",), r"--from is '2024-05-12 07:00:00'; of .*\+00:00"),
        (("1700000000",), "--from is '1700000000'"),
        (("5h",), "no request with tokens in the part --from 5h; it lasts 14399.* s"),
        (("2024-05-12 05:00:00+00:00", "1h"), "no request with tokens in the part"),
    ],
)
def test_a_part_that_is_none(hours: Path, part: tuple[str | float | None, ...], message: str):
    """The refusal names the option, the value and what it may be."""
    with pytest.raises(InputError, match=message):
        taken(hours, *part)


def test_a_clock_that_counts_is_named_in_its_own_unit(tmp_path: Path) -> None:
    """A bare number is a time of the file."""
    path = tmp_path / "trace.csv"
    rows = [f"{1_000 * i + 500},9,9" for i in range(100)]
    path.write_text("\n".join(["Timestamp,Request tokens,Response tokens", *rows]))
    part = TracePart("50500", "10s")
    trace = load_trace(path, time_unit="ms", part=part)
    assert (len(trace), trace.whole and trace.whole.left_out["outside"]) == (10, 90)
    with pytest.raises(InputError, match="or a number in the unit of the file's times"):
        load_trace(path, time_unit="ms", part=TracePart("2024-05-12 07:00:00"))
