"""Token traces of a session: sequences of tokens, with masks, log-probabilities and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError

COMPLETED = "COMPLETED"
TIMEOUT = "TIMEOUT"
ERROR = "ERROR"
_STATUS = (COMPLETED, TIMEOUT, ERROR)
COMPLETION_REWARDS = "completion_rewards"
"""Key in ``metadata`` of a graded trace: the reward of each of its ``completions``."""


@dataclass(frozen=True, eq=False)
class TokenTrace:
    """A prompt of ``P`` tokens and the ``R`` tokens after it."""

    prompt_ids: np.ndarray
    """int32 ``[P]``, tokens of the prompt, never trained on."""
    response_ids: np.ndarray
    """int32 ``[R]``, sampled tokens and the tokens between them."""
    loss_mask: np.ndarray
    """uint8 ``[R]``, 1 for a token that was sampled after exactly the tokens before it."""
    response_logprobs: np.ndarray
    """float32 ``[R]``, log-probabilities of sampled tokens, else NaN; with mask 0 they are 0 in a
    trajectory of ``jaxserve.rollouts.export.exported``."""
    response_texts: Sequence[str] = ()
    """``[R]``, texts of ``response_ids`` for display, empty for tokens that were not sampled;
    ``()`` where the engine gave none."""
    messages: Sequence[Any] = ()
    """messages of the conversation in the form of OpenAI chat, with the last answer."""
    tools: Sequence[Any] = ()
    """tools that the model was offered."""
    finish_reason: str | None = None
    """finish reason of the last answer."""
    reward: float | None = None
    """reward of the trace; None until graded."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """origin of the trace, see ``jaxserve.rollouts.builders``."""

    def __post_init__(self) -> None:
        """Raises InputError where lengths differ, or the mask has other values than 0 and 1."""
        lengths = {
            name: len(getattr(self, name))
            for name in ("response_ids", "loss_mask", "response_logprobs")
        }
        if self.response_texts:
            lengths["response_texts"] = len(self.response_texts)
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"lengths of a trace are {listed}; they must be equal")
        if not np.isin(self.loss_mask, (0, 1)).all():
            odd = self.loss_mask[~np.isin(self.loss_mask, (0, 1))][0]
            checks.refuse("loss_mask of a trace", odd.item(), "0 or 1 everywhere")

    @property
    def trainable(self) -> int:
        """Number of tokens with mask 1."""
        return int(np.count_nonzero(self.loss_mask))


@dataclass(frozen=True, eq=False)
class Trajectory:
    """All traces of one session."""

    status: str
    """COMPLETED, TIMEOUT or ERROR."""
    traces: tuple[TokenTrace, ...]
    """traces in the order of their first responses."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """number of sampled tokens that cannot be trained on, by reason."""
    cuts: Mapping[str, int] = field(default_factory=dict)
    """number of continuations of a conversation in a new trace, by reason."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """number of requests without a whole answer, by reason; their tokens are in ``dropped``."""

    def __post_init__(self) -> None:
        """Raises InputError for an unknown status."""
        checks.one_of("status of a trajectory", self.status, _STATUS)

    @property
    def trainable(self) -> int:
        """Number of tokens with mask 1."""
        return sum(trace.trainable for trace in self.traces)

    @property
    def graded(self) -> bool:
        """Whether the trajectory has traces, and all have a reward."""
        return bool(self.traces) and all(trace.reward is not None for trace in self.traces)
