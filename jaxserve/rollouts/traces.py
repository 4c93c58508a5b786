"""A trace: one sequence of tokens to train on, and which of them the policy sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError

COMPLETED = "COMPLETED"
TIMEOUT = "TIMEOUT"
ERROR = "ERROR"
_STATUS = (COMPLETED, TIMEOUT, ERROR)
COMPLETION_REWARDS = "completion_rewards"
"""In ``metadata`` of a graded trace: what each of its ``completions`` earned."""


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """A prompt and what followed. ``R`` tokens follow ``P`` tokens of prompt."""

    prompt_ids: np.ndarray
    """int32 ``[P]``; never trained on."""
    response_ids: np.ndarray
    """int32 ``[R]``: what was sampled, and what came between."""
    loss_mask: np.ndarray
    """uint8 ``[R]``: 1 where a token was sampled under exactly the tokens before it."""
    response_logprobs: np.ndarray
    """float32 ``[R]``: of the tokens that were sampled; NaN where there is none, and 0 in its place
    only in what ``jaxserve.rollouts.export.exported`` gives, where the mask is 0."""
    response_texts: Sequence[str] = ()
    """of the tokens in ``response_ids``, ``[R]``, for people who look; empty where a token was not
    sampled or has none, and ``()`` where no engine told any."""
    messages: Sequence[Any] = ()
    """as OpenAI chat has them, the last answer included."""
    tools: Sequence[Any] = ()
    """that the model was offered."""
    finish_reason: str | None = None
    """of the last answer."""
    reward: float | None = None
    """None until it is graded."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """where it comes from: see ``jaxserve.rollouts.builders``."""

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ or the mask has other than 0 and 1."""
        lengths = {
            name: len(getattr(self, name))
            for name in ("response_ids", "loss_mask", "response_logprobs")
        }
        if self.response_texts:
            lengths["response_texts"] = len(self.response_texts)
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"lengths of a trace are {said}; they must be equal")
        if not np.isin(self.loss_mask, (0, 1)).all():
            odd = self.loss_mask[~np.isin(self.loss_mask, (0, 1))][0]
            checks.refuse("loss_mask of a trace", odd.item(), "0 or 1 everywhere")

    @property
    def trainable(self) -> int:
        """Tokens with mask 1."""
        return int(np.count_nonzero(self.loss_mask))

    def masked(self, reason: str) -> TokenTrace:
        """The same with nothing to train on, and why."""
        return replace(
            self,
            loss_mask=np.zeros_like(self.loss_mask),
            metadata={**self.metadata, "masked": reason},
        )


@dataclass(frozen=True, eq=False)
class Trajectory:
    """All that came of one session."""

    status: str
    """COMPLETED, TIMEOUT or ERROR."""
    traces: tuple[TokenTrace, ...]
    """in the order in which they began."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """tokens that were sampled and cannot be trained on, by reason."""
    cuts: Mapping[str, int] = field(default_factory=dict)
    """how often a conversation went on in a new trace, by reason."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """requests without a whole answer, by reason; what was sampled for them is in ``dropped``."""

    def __post_init__(self) -> None:
        """Raises InputError for another status."""
        checks.one_of("status of a trajectory", self.status, _STATUS)

    @property
    def trainable(self) -> int:
        """Tokens with mask 1."""
        return sum(trace.trainable for trace in self.traces)

    @property
    def graded(self) -> bool:
        """Whether it has traces, and all have a reward: there is nothing to train on without."""
        return bool(self.traces) and all(trace.reward is not None for trace in self.traces)
