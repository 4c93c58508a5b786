"""No trainable token leaves without a log-probability that can be one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.rollouts.export import exported, logprob_fault
from jaxserve.rollouts.traces import TokenTrace, Trajectory


def trace_of(mask: list[int], logprobs: list[float]) -> TokenTrace:
    """A trace of tokens that do not matter."""
    return TokenTrace(
        prompt_ids=np.array([1], np.int32),
        response_ids=np.arange(len(mask), dtype=np.int32),
        loss_mask=np.array(mask, np.uint8),
        response_logprobs=np.array(logprobs, np.float32),
    )


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (np.nan, "logprob_missing"),
        (np.inf, "logprob_missing"),
        (-np.inf, "logprob_missing"),
        (0.5, "logprob_above_0"),
        (-9999.0, "logprob_filler"),
        (-9000.0, "logprob_filler"),
        (1e-7, None),
        (0.0, None),
        (-80.0, None),
    ],
)
def test_a_turn_that_fails_is_masked(value: float, fault: str | None) -> None:
    """With its other tokens, which are counted; other turns and masked tokens are as they were."""
    good, other = trace_of([1, 0, 1, 1], [-1, np.nan, value, -2]), trace_of([1], [-1])
    assert logprob_fault(good) == fault and logprob_fault(trace_of([1, 0], [-1, value])) is None
    before = Trajectory("COMPLETED", (good, other), {"client_left": 3})
    after = exported(before)
    lost = {} if fault is None else {fault: 2}
    assert after.dropped == {"client_left": 3, **lost}
    assert after.trainable == (2 if fault else 4)
    assert after.traces[0].loss_mask.tolist() == ([1, 0, 0, 0] if fault else [1, 0, 1, 1])
    assert after.traces[0].metadata == ({"masked": lost} if fault else {})
    assert good.trainable == 3 and before.dropped == {"client_left": 3}


@given(st.lists(st.tuples(st.integers(0, 1), st.floats(width=32)), max_size=8))
def test_what_leaves_is_finite(tokens: list[tuple[int, float]]) -> None:
    """0 only where the mask is 0, and the values of all others as they were."""
    trace = trace_of([mask for mask, _ in tokens], [value for _, value in tokens])
    (after,) = exported(Trajectory("COMPLETED", (trace,))).traces
    assert np.isfinite(after.response_logprobs).all()
    on = after.loss_mask == 1
    assert (after.response_logprobs[~on] == 0).all()
    np.testing.assert_array_equal(after.response_logprobs[on], trace.response_logprobs[on])
    assert (after.response_logprobs <= 1e-6).all() and (after.response_logprobs > -9000).all()
