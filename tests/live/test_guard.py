"""One window never goes farther than the guard allows, and never out of the engine's limits."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.live.guard import Guard, Limits, Values, as_values, changed_costly, guarded
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
    found = Limits.of(knobs, tuple(turned)).nearest(values)
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
    limits = Limits(ranges={"speculation_depth": (0, 8)}, allowed={"speculation_depth": (0, 8)})
    found = limits.nearest(guarded(Guard(), before, wanted, 0, limits.allowed))
    assert found == {"speculation_depth": 8}
