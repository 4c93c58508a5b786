"""Bounds of actions and observations: refused outside jit, clipped inside, always finite."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.errors import InputError
from jaxserve.spaces import (
    ACTION_BOUNDS,
    DEFAULT_ACTION,
    KNOBS,
    OBSERVATION_BOUNDS,
    OBSERVATION_FIELDS,
    check_knobs,
    clip_action,
    clip_observation,
    make_action,
    validate_action,
)
from jaxserve.types import ServeAction, ServeObservation

clip = jax.jit(clip_action)


def inside(action: ServeAction) -> bool:
    """Whether every knob is in its range, of its type."""
    return all(
        np.asarray(getattr(action, knob)).dtype == bound.dtype
        and np.all(np.asarray(getattr(action, knob)) >= np.float32(bound.low))
        and np.all(np.asarray(getattr(action, knob)) <= np.float32(bound.high))
        for knob, bound in ACTION_BOUNDS.items()
    )


def test_actions_inside_the_bounds_pass_unchanged() -> None:
    """Lowest and highest values are allowed, and neither check nor clip moves them."""
    for edge in ("low", "high"):
        knobs = {knob: getattr(bound, edge) for knob, bound in ACTION_BOUNDS.items()}
        action = make_action(**knobs)
        assert inside(action)
        for knob in KNOBS:
            assert float(getattr(action, knob)) == pytest.approx(knobs[knob])
            assert getattr(clip(action), knob) == getattr(action, knob)


def test_an_action_survives_json() -> None:
    """What one program writes another reads, float32 bounds included."""
    action = make_action(kv_budget_fraction=0.1)
    text = json.dumps({knob: float(getattr(action, knob)) for knob in KNOBS})
    again = validate_action(json.loads(text))
    assert all(getattr(again, knob) == getattr(action, knob) for knob in KNOBS)


def test_arrays_are_checked_element_by_element() -> None:
    """A batch of actions passes whole or fails by its worst entry."""
    batch = {knob: np.full(3, DEFAULT_ACTION[knob]) for knob in KNOBS}
    assert validate_action(batch).batch_cap.shape == (3,)
    batch["batch_cap"][1] = 0
    with pytest.raises(InputError, match="batch_cap is 0"):
        validate_action(batch)


def test_a_switch_may_be_true_or_false() -> None:
    """Priority routing is a yes or no; the other knobs are not."""
    assert int(make_action(priority_routing=True).priority_routing) == 1
    with pytest.raises(InputError, match="batch_cap is True"):
        make_action(batch_cap=True)


BAD_VALUES: list[Any] = [
    float("nan"),
    float("inf"),
    -float("inf"),
    -1,
    10_000,
    10**400,
    None,
    "32",
    b"32",
    "",
    [],
    {},
    ["32"],
    [1, [2]],
    [None],
    1j,
    object(),
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=lambda value: repr(value)[:12])
@pytest.mark.parametrize("knob", KNOBS)
def test_bad_values_are_refused_by_name(knob: str, value: Any) -> None:
    """NaN, infinities, out of range, wrong type: one sentence with the knob and its range."""
    with pytest.raises(InputError, match=rf"^{knob} .* must be ") as error:
        make_action(**{knob: value})
    assert f"{ACTION_BOUNDS[knob].high:g}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("knob", [knob for knob, b in ACTION_BOUNDS.items() if b.integer])
def test_fractions_of_whole_knobs_are_refused(knob: str) -> None:
    """No silent rounding outside jit."""
    with pytest.raises(InputError, match=rf"{knob} is 0\.5; it must be a whole number"):
        make_action(**{knob: 0.5})


def test_unknown_and_missing_knobs_are_named() -> None:
    """An action has every knob, but for the replicas of actions that are older than that knob."""
    with pytest.raises(InputError, match="unknown knob 'batch_size'"):
        make_action(batch_size=8)
    for knob in KNOBS[:-1]:
        rest = {name: value for name, value in DEFAULT_ACTION.items() if name != knob}
        with pytest.raises(InputError, match=f"knob '{knob}' is missing"):
            validate_action(rest)
    older = {name: DEFAULT_ACTION[name] for name in KNOBS[:-1]}
    assert int(validate_action(older).replicas) == 0
    with pytest.raises(InputError, match="unknown knob 1"):
        validate_action({**DEFAULT_ACTION, 1: 2})


@pytest.mark.parametrize("action", [None, 3, "batch_cap=3", [1, 2, 3, 4, 5, 6], object()])
def test_what_is_no_action_is_refused(action: Any) -> None:
    """Only mappings and ServeActions are actions."""
    with pytest.raises(InputError, match="it must map the knobs"):
        validate_action(action)


def test_knobs_of_different_shapes_are_refused() -> None:
    """A batch is a batch in every knob."""
    with pytest.raises(InputError, match=r"kv_budget_fraction has shape \(\)"):
        make_action(batch_cap=[1, 2])


@given(st.floats(width=32), st.integers(-(2**31), 2**31 - 1))
def test_inside_jit_everything_is_clipped(real: float, whole: int) -> None:
    """Any number whatever becomes an action inside the bounds, of the right types."""
    for value in (jnp.float32(real), jnp.int32(whole)):
        action = clip(ServeAction(**dict.fromkeys(KNOBS, value)))
        assert inside(action)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "uint32", "float16", "bfloat16"])
def test_inside_jit_any_type_of_number_is_an_action(dtype: str) -> None:
    """Narrow types clip as their value says: none of them wraps around a bound."""
    if dtype == "float16":
        try:
            jnp.asarray(1, dtype).astype(jnp.float32)
        except jax.errors.JaxRuntimeError as error:  # processors without F16C
            pytest.skip(f"XLA converts no float16 here: {error}")
    action = clip(ServeAction(**dict.fromkeys(KNOBS, jnp.asarray(1, dtype))))
    assert inside(action)
    assert int(action.batch_cap) == 1
    largest = {"bool": 1, "uint8": 255, "int8": 127, "uint32": 2**32 - 1}.get(dtype, 60_000.0)
    action = clip(ServeAction(**dict.fromkeys(KNOBS, jnp.asarray(largest, dtype))))
    assert int(action.batch_cap) == min(largest, 512)


def test_inside_jit_nan_is_the_lower_bound() -> None:
    """A network that diverges turns the knobs down, deterministically."""
    action = clip(ServeAction(**dict.fromkeys(KNOBS, jnp.float32(np.nan))))
    for knob, bound in ACTION_BOUNDS.items():
        assert float(getattr(action, knob)) == pytest.approx(bound.low)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_observations_are_finite_and_inside_their_bounds(value: float) -> None:
    """Whatever a simulator produces, a network never sees NaN or infinity."""
    wild = ServeObservation(
        **{name: jnp.full(entry.shape, value) for name, entry in OBSERVATION_FIELDS.items()}
    )
    seen = clip_observation(wild)
    for name, bound in OBSERVATION_BOUNDS.items():
        entry = np.asarray(getattr(seen, name))
        assert entry.dtype == np.float32
        assert np.all((entry >= bound.low) & (entry <= bound.high))


def test_checked_knobs_are_plain_numpy() -> None:
    """Checks touch no device, so that a server can check without a GPU."""
    assert all(type(value) is np.ndarray for value in check_knobs(DEFAULT_ACTION).values())
    assert jaxserve.validate_action is validate_action
