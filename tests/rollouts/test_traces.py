"""A trace that cannot be one is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.rollouts.traces import Trajectory
from tests.rollouts.test_export import trace_of

PLAIN = trace_of([1, 0], [-1, -1])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: replace(PLAIN, response_ids=np.arange(3, dtype=np.int32)),
            "response_ids 3, loss_mask 2",
        ),
        (lambda: replace(PLAIN, response_texts=("a",)), "response_texts 1"),
        (lambda: trace_of([1, 2], [-1, -1]), "loss_mask of a trace is 2; it must be 0 or 1"),
        (lambda: Trajectory("DONE", ()), "status of a trajectory is 'DONE'"),
    ],
)
def test_what_is_no_trace(make: Callable[[], object], said: str) -> None:
    """Ids, mask, log-probabilities and texts belong together token by token."""
    with pytest.raises(InputError, match=said):
        make()
