"""A trace that cannot be one is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.rollouts.traces import Trajectory
from tests.rollouts.test_export import trace_of


def test_lengths_are_equal() -> None:
    """Ids, mask, log-probabilities and texts belong together token by token."""
    trace = trace_of([1, 0], [-1, -1])
    with pytest.raises(InputError, match="response_ids 3, loss_mask 2"):
        replace(trace, response_ids=np.arange(3, dtype=np.int32))
    with pytest.raises(InputError, match="response_texts 1"):
        replace(trace, response_texts=("a",))


def test_the_mask_is_0_or_1() -> None:
    """Nothing between, and no weight."""
    with pytest.raises(InputError, match="loss_mask of a trace is 2; it must be 0 or 1"):
        trace_of([1, 2], [-1, -1])


def test_the_status_is_known() -> None:
    """Three values are allowed."""
    with pytest.raises(InputError, match="status of a trajectory is 'DONE'"):
        Trajectory("DONE", ())
