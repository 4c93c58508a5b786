"""Whether traces hold what the policy sampled: importance ratios before the first step.

A trainer that recomputes log-probabilities of the weights that sampled gets ratios of 1, up to
rounding. Anything else means wrong ids, wrong log-probabilities, or another temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from jaxserve.errors import InputError
from jaxserve.rollouts.traces import TokenTrace

Policy = Callable[[TokenTrace], np.ndarray]


@dataclass(frozen=True)
class Ratios:
    """Of the policy to what was recorded, over all trainable tokens."""

    tokens: int
    """how many there are."""
    largest: float
    """largest ``|ratio - 1|``."""
    mean: float
    """mean ratio."""
    where: tuple[int, int]
    """trace and place in ``response_ids`` of the largest."""


def importance_ratios(traces: Iterable[TokenTrace], policy: Policy) -> Ratios:
    """How far the ratios of trainable tokens are from 1.

    Args:
      traces: as a trainer gets them.
      policy: log-probabilities of all tokens of a trace's response, float ``[R]``, e.g. by
        ``token_logprobs``.

    Raises:
      InputError: there is no trainable token, or the policy gives another shape or NaN.
    """
    found: list[np.ndarray] = []
    largest, where = -1.0, (0, 0)
    for number, trace in enumerate(traces):
        new = np.asarray(policy(trace), np.float64)
        if new.shape != trace.response_ids.shape:
            raise InputError(
                f"log-probabilities of the policy have shape {new.shape}; it must be "
                f"{trace.response_ids.shape}, as response_ids"
            )
        (places,) = np.nonzero(trace.loss_mask)
        with np.errstate(over="ignore"):  # what is off by more than a float holds is inf
            ratios = np.exp(new[places] - trace.response_logprobs[places].astype(np.float64))
        if np.isnan(ratios).any():
            raise InputError(f"a ratio of trace {number} is NaN; it must be a number")
        if len(ratios):
            off = np.abs(ratios - 1.0)
            worst = int(off.argmax())
            if off[worst] > largest:
                largest, where = float(off[worst]), (number, int(places[worst]))
        found.append(ratios)
    together = np.concatenate(found) if found else np.empty(0)
    if not len(together):
        raise InputError("traces have 0 trainable tokens; they must have at least 1")
    return Ratios(len(together), largest, float(together.mean()), where)


def token_logprobs(logits: np.ndarray, trace: TokenTrace) -> np.ndarray:
    """Log-probabilities of a response's tokens from a model's output.

    Args:
      logits: ``[P + R, V]`` over prompt and response; row ``t`` is for the token after ``t``.
      trace: whose tokens these are.

    Returns:
      float64 ``[R]``.

    Raises:
      InputError: the prompt is empty, or there are not as many rows as tokens.
    """
    prompt, total = len(trace.prompt_ids), len(trace.prompt_ids) + len(trace.response_ids)
    if not prompt or len(logits) != total:
        raise InputError(
            f"logits have {len(logits)} rows for {prompt} tokens of prompt; they must have {total} "
            "with at least 1 of prompt"
        )
    rows = np.asarray(logits, np.float64)[prompt - 1 : total - 1]
    rows = rows - rows.max(axis=-1, keepdims=True)
    picked = rows[np.arange(len(rows)), trace.response_ids]
    return picked - np.log(np.exp(rows).sum(axis=-1))
