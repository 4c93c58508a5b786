"""Replicas of the fast simulator that start, serve, drain and stop."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast.fleet import FleetState, draining_gpus, end_window, init_fleet, set_wanted
from jaxserve.sim.machine.fleet import Fleet, FleetSettings

PLACES, WINDOW_S = 5, 10.0
RUNNING = jnp.array([30.0, 10.0])


def fleet(serving: int) -> FleetState:
    """A fleet of which some replicas serve."""
    constants = FleetSettings().on_device(PLACES)
    return init_fleet(jax.random.key(0), constants, jnp.int32(serving), 2)


def window(
    state: FleetState,
    wanted: int,
    number: int,
    settings: FleetSettings,
    ended: float = 0.5,
    running: jax.Array = RUNNING,
) -> tuple[FleetState, FleetState]:
    """The fleet inside a window and at its end; ``ended`` mean outputs pass."""
    constants = settings.on_device(PLACES)
    return _window(state, jnp.int32(wanted), constants, running, jnp.int32(number), ended)


@jax.jit
def _window(
    state: FleetState,
    wanted: jax.Array,
    constants: Fleet,
    running: jax.Array,
    number: jax.Array,
    ended: float,
) -> tuple[FleetState, FleetState]:
    begun = set_wanted(state, wanted, constants, running, number, WINDOW_S)
    return begun, end_window(begun, jnp.full(2, ended), running, WINDOW_S)


def phases(state: FleetState) -> np.ndarray:
    """bool[3, PLACES]: starting, serving, draining."""
    return np.array([state.starting, state.serving, state.draining])


@given(
    wanted=st.lists(st.integers(-1, PLACES + 2), min_size=4, max_size=10),
    start_s=st.sampled_from([0.0, 5.0, 35.0]),
    refused=st.sampled_from([0.0, 0.5]),
    ended=st.sampled_from([0.05, 2.0]),
)
def test_places_are_in_one_phase_and_as_many_are_up_as_are_wanted(
    wanted: list[int], start_s: float, refused: float, ended: float
) -> None:
    """A place is off or in one phase, what is paid for is what is not off, and the number that
    serves or starts is the number wanted, as far as places and free GPUs allow."""
    state, settings = fleet(2), FleetSettings((start_s, start_s), 30.0, 0.0, refused)
    for number, count in enumerate(wanted):
        begun, state = window(state, count, number, settings, ended)
        for each in (begun, state):
            assert (phases(each).sum(axis=0) <= 1).all()
        assert float(begun.rented) == phases(begun).sum()
        up = int(phases(begun)[:2].sum())
        asked = PLACES if count == 0 else min(max(count, 1), PLACES)
        assert up >= 1
        assert up <= asked or refused
        if not refused and phases(begun)[2].sum() == 0:
            assert up == asked
        assert 0.0 <= float(begun.serving_mean) <= PLACES
        assert (np.asarray(state.leaving) >= 0.0).all()


def test_a_replica_serves_for_the_rest_of_the_window_in_which_it_comes_up() -> None:
    """A start-up of 14 s: nothing in the first window of 10 s, six tenths of the second."""
    settings = FleetSettings((14.0, 14.0))
    begun, state = window(fleet(1), 2, 0, settings)
    assert float(begun.serving_mean) == 1.0
    begun, state = window(state, 2, 1, settings)
    assert np.isclose(float(begun.serving_mean), 1.6)
    assert int(phases(state)[1].sum()) == 2


def test_the_start_with_most_time_ahead_is_cancelled_first() -> None:
    """Of two starts the later one ends when one replica fewer is wanted."""
    settings = FleetSettings((25.0, 25.0))
    _, state = window(fleet(1), 2, 0, settings)
    _, state = window(state, 3, 1, settings)
    left = np.asarray(state.start_left_s)[np.asarray(state.starting)]
    assert sorted(left) == [5.0, 15.0]
    _, state = window(state, 2, 2, settings)
    assert int(phases(state)[0].sum()) == 0
    assert int(phases(state)[1].sum()) == 2


def test_a_drain_ends_with_its_sequences_or_with_its_time() -> None:
    """Draining replicas keep their share of the sequences, which decays or is preempted."""
    settings = FleetSettings((1.0, 1.0), drain_s=25.0)
    begun, state = window(fleet(4), 3, 0, settings, ended=0.1)
    assert np.allclose(begun.leaving, np.asarray(RUNNING) / 4)
    assert float(state.stopped_share) == 0.0
    for number in (1, 2):
        _, state = window(state, 3, number, settings, ended=0.1)
    # 25 s have passed in the third window; 10 exp(-.3) sequences of 40 were left.
    assert np.isclose(float(state.stopped_share), 10.0 * np.exp(-0.3) / 40.0)
    assert not np.asarray(state.leaving).any()
    assert int(phases(state)[2].sum()) == 0
    _, quick = window(fleet(4), 3, 0, settings, ended=6.0)
    assert int(phases(quick)[2].sum()) == 0
    assert float(quick.stopped_share) == 0.0


def test_a_start_that_fails_never_serves() -> None:
    """With every start failing the fleet pays for starts and stays at what serves."""
    settings = FleetSettings((5.0, 5.0), failing_share=1.0)
    state, rented = fleet(1), 0.0
    for number in range(4):
        begun, state = window(state, 3, number, settings)
        rented += float(begun.rented)
    assert int(phases(state)[1].sum()) == 1
    assert rented == 12.0


def test_draining_replicas_leave_no_room() -> None:
    """They count as the GPUs that their sequences fill, in slots or in KV, and no more than they
    are."""
    state = dataclasses.replace(
        fleet(3), draining=jnp.arange(PLACES) == 3, leaving=jnp.array([6.0, 2.0])
    )
    kv = jnp.array([100.0, 300.0])
    by_slots = draining_gpus(state, jnp.float32(16.0), kv, jnp.float32(1e6))
    by_kv = draining_gpus(state, jnp.float32(1e3), kv, jnp.float32(4000.0))
    most = draining_gpus(state, jnp.float32(1.0), kv, jnp.float32(1.0))
    assert np.allclose([by_slots, by_kv, most], [0.5, 0.3, 1.0])
