"""Checks and masks traces before a trainer gets them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from jaxserve.rollouts.traces import TokenTrace, Trajectory

MISSING = "logprob_missing"
TOO_HIGH = "logprob_above_0"
TOO_LOW = "logprob_filler"
_MOST = 1e-6
"""A log-probability above 0 by rounding."""
_LEAST = -9000.0
"""No sampled token is this unlikely; vLLM writes -9999 for a missing value."""


def exported(trajectory: Trajectory) -> Trajectory:
    """The trajectory for trainers: no log-probability is NaN, and those of masked tokens are 0.

    A turn, a run of trainable tokens, is masked if a log-probability in it is missing or
    impossible, since the updates of its other tokens depend on it; its tokens are counted as
    dropped, and in the trace's metadata as ``masked``. Other turns stay: their context is complete.
    """
    dropped = Counter(trajectory.dropped)
    traces = []
    for trace in trajectory.traces:
        mask, lost = trace.loss_mask.copy(), Counter[str]()
        for turn in _turns(trace.loss_mask):
            if (fault := _fault(trace.response_logprobs[turn])) is not None:
                mask[turn] = 0
                lost[fault] += turn.stop - turn.start
        dropped += lost
        traces.append(
            replace(
                trace,
                loss_mask=mask,
                response_logprobs=np.where(mask == 1, trace.response_logprobs, np.float32(0)),
                metadata={**trace.metadata, "masked": dict(lost)} if lost else trace.metadata,
            )
        )
    return replace(trajectory, traces=tuple(traces), dropped=dict(dropped))


def logprob_fault(trace: TokenTrace) -> str | None:
    """The fault in the log-probabilities of the trainable tokens; None without one."""
    return _fault(trace.response_logprobs[trace.loss_mask == 1])


def _turns(mask: np.ndarray) -> Iterator[slice]:
    """Runs of trainable tokens."""
    edges = np.flatnonzero(np.diff(mask == 1, prepend=False, append=False))
    for start, stop in edges.reshape(-1, 2).tolist():
        yield slice(start, stop)


def _fault(values: np.ndarray) -> str | None:
    """The fault in log-probabilities; None without one."""
    if not np.isfinite(values).all():
        return MISSING
    if (values > _MOST).any():
        return TOO_HIGH
    return TOO_LOW if (values <= _LEAST).any() else None
