"""What evaluators get and give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.bounded_process import Ended
from jaxserve.rollouts.traces import Trajectory


@dataclass(frozen=True)
class Episode:
    """The episode that was begun for a session on an environment's server."""

    url: str
    """of the server."""
    session_id: str
    """there; not the gateway's."""
    episode_id: str
    """the client's name of it."""
    episode_number: str
    """the server's own; a session may begin another."""
    task_id: str
    """what is played."""
    seed: int
    """of its traffic."""
    split: str
    """train, validation or test."""


@dataclass(frozen=True)
class Context:
    """What there is of a session beside its trajectory."""

    session: str
    """its name."""
    instruction: str
    """what the agent was told."""
    work: Path
    """where the agent worked, as it left it."""
    artifacts: Path
    """what it was to leave for others."""
    scratch: Path
    """a folder for the evaluator."""
    fresh: Path
    """a copy of ``source`` in it, prepared for the evaluation, where the evaluator has
    ``needs_fresh = True``."""
    execute: Callable[[Sequence[str], Path], Ended]
    """runs a command in ``fresh``, where the task's commands run; what it prints goes to a file."""
    source: Path | None = None
    """of which ``work`` was a copy at first."""
    records: Sequence[CompletionRecord] = ()
    """what was said."""
    episode: Episode | None = None
    """that was begun for it."""
    budget_s: float = 600.0
    """for the evaluation."""
    environment_token: str | None = field(default=None, repr=False)
    """that the environment's server asks for."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """the submitter's own."""


@dataclass(frozen=True)
class EvalResult:
    """What it is worth."""

    outcome_reward: float
    """of the whole."""
    trace_rewards: Sequence[float | None] | None = None
    """of each trace, None where only the outcome counts; None altogether gives all the outcome."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """how it came about, JSON."""
    completion_rewards: Mapping[tuple[int, int], float] | None = None
    """what each completion earned, by record and choice; others earned nothing. None where the
    evaluator tells no completions apart."""


class Evaluator(Protocol):
    """``evaluate`` runs in a thread of its own, and may wait."""

    def evaluate(self, trajectory: Trajectory, context: Context) -> EvalResult:
        """What a session is worth.

        Raises:
          InputError: it cannot be told; the session ends with this reason.
        """
        ...
