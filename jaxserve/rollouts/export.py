"""Checks and masks traces before a trainer gets them."""

from __future__ import annotations

from collections import Counter
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

    A trace with a trainable token whose log-probability is missing or impossible is masked whole,
    since the other tokens' updates depend on it; its tokens are counted as dropped.
    """
    dropped = Counter(trajectory.dropped)
    traces = []
    for trace in trajectory.traces:
        if (fault := logprob_fault(trace)) is not None:
            dropped[fault] += trace.trainable
            trace = trace.masked(fault)
        logprobs = np.where(trace.loss_mask == 1, trace.response_logprobs, np.float32(0))
        traces.append(replace(trace, response_logprobs=logprobs))
    return replace(trajectory, traces=tuple(traces), dropped=dict(dropped))


def logprob_fault(trace: TokenTrace) -> str | None:
    """The fault in the log-probabilities of the trainable tokens; None without one."""
    values = trace.response_logprobs[trace.loss_mask == 1]
    if not np.isfinite(values).all():
        return MISSING
    if (values > _MOST).any():
        return TOO_HIGH
    return TOO_LOW if (values <= _LEAST).any() else None
