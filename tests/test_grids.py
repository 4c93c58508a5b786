"""The knob grid: every point is an allowed action, and locked knobs have one."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.grids import KNOB_GRIDS, action_at, grid_sizes, nearest_indices
from jaxserve.spaces import KNOBS, make_action, validate_action


def test_every_point_is_an_allowed_action() -> None:
    """Grids rise, start and end at the knob's bounds, and hold nothing that is refused."""
    longest = max(map(len, KNOB_GRIDS.values()))
    for step in range(longest):
        indices = [min(step, len(KNOB_GRIDS[knob]) - 1) for knob in KNOBS]
        validate_action(action_at(jnp.asarray(indices)))
    for knob, bound in jaxserve.ACTION_BOUNDS.items():
        assert (np.diff(KNOB_GRIDS[knob]) > 0).all()
        assert KNOB_GRIDS[knob][[0, -1]] == pytest.approx([bound.low, bound.high])


def test_an_action_of_the_grid_is_found_again() -> None:
    """``nearest_indices`` undoes ``action_at``, and rounds what lies between in octaves."""
    indices = np.array([9, 3, 2, 1, 4, 1, 5])
    np.testing.assert_array_equal(nearest_indices(action_at(jnp.asarray(indices))), indices)
    assert KNOB_GRIDS["batch_cap"][nearest_indices(make_action(batch_cap=175))[0]] == 192


def test_locked_knobs_have_one_point() -> None:
    """The size is 1 where the task locks, and the split leaves a GPU to decode."""
    assert grid_sizes(jaxserve.make("static_workload")).tolist() == [16, 11, 1, 1, 1, 1, 1]
    hard = jaxserve.make("adversarial_multitenant")
    assert grid_sizes(hard).tolist() == [16, 11, 9, 3, int(hard.deployment.num_gpus), 2, 1]
