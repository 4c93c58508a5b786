"""Windows are exact: the same as counting every single measurement."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.measure.records import Records, RequestRecord
from jaxserve.gateway.measure.windows import Series, WindowSeries

SAMPLES = st.lists(
    st.tuples(st.floats(0.0, 5.0), st.floats(0.001, 2.0), st.integers(0, 2)), max_size=60
)
EDGES = st.tuples(st.floats(-1.0, 6.0), st.floats(-1.0, 6.0))


def nearest_rank(values: list[float], share: float) -> float | None:
    """The definition, by counting."""
    ordered = sorted(values)
    for value in ordered:
        if sum(other <= value for other in ordered) >= share * len(ordered):
            return value
    return None


@given(samples=SAMPLES, edges=EDGES)
def test_quantiles_and_counts(
    samples: list[tuple[float, float, int]], edges: tuple[float, float]
) -> None:
    """Of all and of each class; the later edge belongs to the window, the earlier one does not."""
    since, until = sorted(edges)
    classes = RequestClasses(("a:ttft=1",))
    windows = WindowSeries(classes, 1e9)
    for time_s, value, place in sorted(samples):
        for series in (windows.ttft_s, windows.itl_s, windows.arrivals):
            series.add(time_s, value if series is not windows.arrivals else place, place)
    found = windows.window(Records(10), since, until)
    for name, part in (("", found), *found["classes"].items()):
        mine = [
            value
            for time_s, value, place in samples
            if since < time_s <= until and name in ("", classes.names[place])
        ]
        assert part["arrivals"] == part["first_tokens"] == len(mine)
        assert sum(part["arrivals_by_priority"].values()) == len(mine)
        for key, share in (("p50", 0.5), ("p99", 0.99)):
            assert part[f"ttft_{key}_s"] == part[f"itl_{key}_s"] == nearest_rank(mine, share)
        if mine:
            assert part["itl_mean_s"] == pytest.approx(math.fsum(mine) / len(mine))
        else:
            assert part["itl_mean_s"] is None
    assert found["complete"]


@given(samples=SAMPLES, cut=st.floats(0.0, 5.0))
def test_windows_that_follow_each_other(
    samples: list[tuple[float, float, int]], cut: float
) -> None:
    """Nothing is counted twice and nothing is left out."""
    series = Series(1e9)
    for time_s, value, place in sorted(samples):
        series.add(time_s, value, place)
    first, _ = series.between(-1.0, cut)
    second, _ = series.between(cut, 5.0)
    assert sorted([*first, *second]) == sorted(value for _, value, _ in samples)


@given(samples=SAMPLES, edges=EDGES, slices=st.integers(1, 9))
def test_slices(
    samples: list[tuple[float, float, int]], edges: tuple[float, float], slices: int
) -> None:
    """Equal parts of the window: each measurement is in one of them, the one of its time."""
    since, until = sorted(edges)
    classes = RequestClasses(("a:ttft=1",))
    windows = WindowSeries(classes, 1e9)
    for time_s, value, place in sorted(samples):
        windows.arrivals.add(time_s, 0.0, place)
        windows.ttft_s.add(time_s, value, place)
    found = windows.window(Records(10), since, until, slices)["classes"]
    for place, name in enumerate(classes.names):
        mine = [one for one in sorted(samples) if since < one[0] <= until and one[2] == place]
        counts, length_s = found[name]["arrivals_by_slice"], (until - since) / slices
        assert len(counts) == slices and sum(counts) == found[name]["arrivals"] == len(mine)
        assert found[name]["ttft_s"] == [value for _, value, _ in mine]
        for part in range(slices):
            before = sum(time_s < since + (part + 1) * length_s - 1e-9 for time_s, _, _ in mine)
            after = sum(time_s <= since + (part + 1) * length_s + 1e-9 for time_s, _, _ in mine)
            assert before <= sum(counts[: part + 1]) <= after
    assert "ttft_s" not in windows.window(Records(10), since, until)["classes"]["a"]


def ended(at_s: float, outcome: str = "completed", **fields: Any) -> RequestRecord:
    return RequestRecord("x", "chat", 0.0, 0.0, ended_s=at_s, outcome=outcome, **fields)


def test_outcomes() -> None:
    """Rejected and failed requests count as missed; those whose client left, or whose answer was
    not streamed, say nothing of the objectives."""
    records = Records(100)
    times = {"first_token_s": 1.0, "last_token_s": 2.0}
    records.add(ended(3.0, good=True, output_tokens=11, prompt_tokens=5, **times))
    records.add(ended(3.1, good=False, output_tokens=6, prompt_tokens=5, **times))
    records.add(ended(3.2, good=None))
    records.add(ended(3.3, "rejected"))
    records.add(ended(3.4, "failed"))
    records.add(ended(3.5, "cancelled"))
    found = WindowSeries(RequestClasses(), 10.0).window(records, 2.0, 4.0)
    counts = {name: found[name] for name in ("completed", "rejected", "cancelled", "failed")}
    assert counts == {"completed": 3, "rejected": 1, "cancelled": 1, "failed": 1}
    assert (found["good"], found["goodput_rps"], found["slo_attainment"]) == (1, 0.5, 0.25)
    assert (found["prompt_tokens"], found["output_tokens"], found["uncounted"]) == (10, 17, 1)
    assert found["tpot_mean_s"] == pytest.approx((0.1 + 0.2) / 2)
    empty = WindowSeries(RequestClasses(), 10.0).window(Records(1), 2.0, 4.0)
    assert empty["slo_attainment"] is None and empty["goodput_rps"] == 0.0


def test_memory_is_bounded_and_honest() -> None:
    """Old measurements go; a window that reaches back to them says that it is not complete."""
    windows = WindowSeries(RequestClasses(), kept_s=100.0)
    for number in range(100_000):
        windows.itl_s.add(number * 0.1, 0.01, 0)
    assert len(windows.itl_s._times) < 10_000
    assert windows.window(Records(1), 9_950.0, 10_000.0)["complete"]
    assert not windows.window(Records(1), 10.0, 10_000.0)["complete"]
    crowded = Series(kept_s=1e9, most=5_000)
    for number in range(50_000):
        crowded.add(float(number), 0.0, 0)
    assert len(crowded._times) <= 10_000 and crowded.dropped_to_s > 30_000
