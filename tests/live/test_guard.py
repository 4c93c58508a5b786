"""One window never goes farther than the guard allows, and never out of the engine's limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.live.guard import (
    Guard,
    KnobLimits,
    Values,
    as_values,
    changed,
    changed_costly,
    guarded,
    limited,
    parse_most_changes,
    windows_of_a_minute,
)
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action


def number_of(name: str) -> st.SearchStrategy[float]:
    """Any value of a knob."""
    bound = ACTION_BOUNDS[name]
    if bound.integer:
        return st.integers(int(bound.low), int(bound.high)).map(float)
    return st.floats(bound.low, bound.high)


VALUES = st.fixed_dictionaries({name: number_of(name) for name in KNOBS})
GUARDS = st.builds(
    Guard,
    octaves=st.floats(0.0, 3.0),
    kv_step_down=st.floats(0.01, 0.5),
    depth_step=st.integers(1, 4),
    dwell_windows=st.integers(0, 50),
)


@given(guard=GUARDS, before=VALUES, wanted=VALUES, since=st.integers(0, 60))
def test_a_step(guard: Guard, before: Values, wanted: Values, since: int) -> None:
    """Never beyond it, always towards what is wanted, in values that the knobs have."""
    found = guarded(guard, before, wanted, since)
    factor = 2.0**guard.octaves
    cap = before["batch_cap"]
    assert found["batch_cap"] == round(found["batch_cap"]) >= 1.0
    assert cap / factor <= found["batch_cap"] <= cap * factor or (
        abs(found["batch_cap"] - cap) <= 1.0
    )
    assert found["kv_budget_fraction"] >= before["kv_budget_fraction"] - guard.kv_step_down
    assert abs(found["speculation_depth"] - before["speculation_depth"]) <= guard.depth_step
    for name in KNOBS:
        low, high = sorted((before[name], wanted[name]))
        assert low <= found[name] <= high
    if since < guard.dwell_windows:
        assert not changed_costly(before, found)
    else:
        assert found["quantization_tier"] == wanted["quantization_tier"]


@given(guard=GUARDS, before=VALUES, wanted=VALUES)
def test_steps_arrive(guard: Guard, before: Values, wanted: Values) -> None:
    """Step by step everything gets to where it is wanted: no rounding holds it up."""
    values = before
    for _ in range(700):
        values = guarded(guard, values, wanted, since_costly=guard.dwell_windows)
    assert values == wanted


@st.composite
def offers(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """What a gateway may offer of each knob."""
    found: dict[str, dict[str, Any]] = {}
    for name in KNOBS:
        how = draw(st.sampled_from(["nobody", "range", "few"]))
        low, high = sorted((draw(number_of(name)), draw(number_of(name))))
        found[name] = {"where": None if how == "nobody" else "engine", "least": low, "most": high}
        if how == "few":
            found[name]["allowed"] = sorted({low, high})
    return found


@given(knobs=offers(), values=VALUES, turned=st.sets(st.sampled_from(KNOBS)))
def test_limits(knobs: dict[str, Any], values: Values, turned: set[str]) -> None:
    """Only knobs that are turned and offered, always inside, and nothing is moved that fits."""
    found = KnobLimits.of(knobs, tuple(turned)).nearest(values)
    assert set(found) == {name for name in turned if knobs[name]["where"]}
    for name, value in found.items():
        knob = knobs[name]
        assert knob["least"] <= value <= knob["most"]
        if "allowed" in knob:
            assert value in knob["allowed"]
        elif knob["least"] <= values[name] <= knob["most"]:
            assert value == values[name]
        if ACTION_BOUNDS[name].integer:
            assert isinstance(value, int)


def test_pools_of_few_depths() -> None:
    """Depths that are farther apart than a step are reached all the same."""
    before, wanted = (as_values(make_action(speculation_depth=depth)) for depth in (0, 8))
    limits = KnobLimits(ranges={"speculation_depth": (0, 8)}, allowed={"speculation_depth": (0, 8)})
    found = limits.nearest(guarded(Guard(), before, wanted, 0, limits.allowed))
    assert found == {"speculation_depth": 8}


COUNTS = st.dictionaries(st.sampled_from(KNOBS), st.integers(0, 5))


@given(most=COUNTS, changes=COUNTS, before=VALUES, wanted=VALUES)
def test_limited(
    most: dict[str, int], changes: dict[str, int], before: Values, wanted: Values
) -> None:
    """A knob keeps its value if and only if it has made its changes."""
    found = limited(most, changes, before, wanted)
    for name in KNOBS:
        kept = name in most and changes.get(name, 0) >= most[name]
        assert found[name] == (before if kept else wanted)[name]
    assert changed(before, found) <= changed(before, wanted)
    assert changed_costly(before, found) <= changed_costly(before, wanted)


@pytest.mark.parametrize(
    ("window_s", "windows"), [(1.0, 60), (2.0, 30), (0.1, 600), (7.0, 9), (60.0, 1), (90.0, 1)]
)
def test_windows_of_a_minute(window_s: float, windows: int) -> None:
    """As many as can begin in it, and one at least."""
    assert windows_of_a_minute(window_s) == windows


def test_parse_most_changes() -> None:
    """Knobs of the task with whole numbers, each once; anything else is named in one sentence."""
    turned = ("batch_cap", "kv_budget_fraction")

    def parse(text: str) -> dict[str, int]:
        return parse_most_changes("--most-changes", text, turned)

    assert parse("batch_cap=2, kv_budget_fraction=0") == {"batch_cap": 2, "kv_budget_fraction": 0}
    allowed = "it must be one of batch_cap, kv_budget_fraction"
    for text, name in (("cap=2", "cap"), ("speculation_depth=1", "speculation_depth"), ("", "")):
        with pytest.raises(InputError, match=f"^a knob of --most-changes is '{name}'; {allowed}$"):
            parse(text)
    for number in ("-1", "1.5", "x", "", "10001"):
        with pytest.raises(InputError, match=r"^batch_cap of --most-changes is .*a whole number"):
            parse(f"kv_budget_fraction=1,batch_cap={number}")
    with pytest.raises(InputError, match=r"^--most-changes names batch_cap twice"):
        parse("batch_cap=2,batch_cap=3")
