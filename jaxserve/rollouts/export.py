"""The last look at traces before a trainer gets them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from jaxserve.rollouts.traces import TokenTrace, Trajectory

MISSING = "logprob_missing"
TOO_HIGH = "logprob_above_0"
TOO_LOW = "logprob_filler"
_MOST = 1e-6
"""Rounding may leave a log-probability that much above 0."""
_LEAST = -9000.0
"""Nothing that is sampled is as unlikely; vLLM writes -9999 where it has no value."""


def exported(trajectory: Trajectory) -> Trajectory:
    """The trajectory as a trainer may have it: no NaN, and 0 only where the mask is 0.

    A trace in which a trainable token has no log-probability that can be one is masked whole, since
    what its others would teach rests on it; its tokens are counted as dropped.
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
    """What is wrong with the log-probabilities of the trainable tokens, None where nothing is."""
    values = trace.response_logprobs[trace.loss_mask == 1]
    if not np.isfinite(values).all():
        return MISSING
    if (values > _MOST).any():
        return TOO_HIGH
    return TOO_LOW if (values <= _LEAST).any() else None
