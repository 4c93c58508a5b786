"""Checks traces against a policy: importance ratios before the first training step.

With log-probabilities recomputed by the weights that sampled, ratios are 1 up to rounding. Other
ratios mean wrong token ids, wrong log-probabilities, or another temperature.
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
    """Importance ratios, policy over record, of all trainable tokens."""

    tokens: int
    """number of trainable tokens."""
    largest: float
    """largest ``|ratio - 1|``."""
    mean: float
    """mean ratio."""
    where: tuple[int, int]
    """number of the trace, and index in ``response_ids``, of the largest."""


def importance_ratios(traces: Iterable[TokenTrace], policy: Policy) -> Ratios:
    """Deviation of the importance ratios of trainable tokens from 1.

    Args:
      traces: traces of ``exported`` trajectories.
      policy: function from a trace to the log-probabilities of its response, float ``[R]``, for
        example by ``token_logprobs``.

    Raises:
      InputError: no token is trainable, or the policy gives another shape or NaN.
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
        with np.errstate(over="ignore"):  # a ratio beyond a float is inf
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
    """Log-probabilities of a response's tokens from a model's logits.

    Args:
      logits: ``[P + R, V]`` over prompt and response; row ``t`` predicts token ``t + 1``.
      trace: trace of the tokens.

    Returns:
      float64 ``[R]``.

    Raises:
      InputError: the prompt is empty, or the number of rows is not that of the tokens.
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
