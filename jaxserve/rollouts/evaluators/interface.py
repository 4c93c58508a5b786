"""Types of the evaluators' interface: the protocol, its context and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.bounded_process import ProcessExit
from jaxserve.rollouts.traces import Trajectory


@dataclass(frozen=True)
class EnvironmentEpisode:
    """The episode of an environment's server that the service began for a session."""

    url: str
    """address of the server."""
    session_id: str
    """session on that server, not the gateway's."""
    episode_id: str
    """name that the client gave the episode."""
    episode_number: str
    """the server's own number; every reset gets a new one."""
    task_id: str
    """task that is played."""
    seed: int
    """seed of the traffic."""
    split: str
    """train, validation or test."""


@dataclass(frozen=True)
class EvaluationContext:
    """A session's data beside its trajectory."""

    session: str
    """name of the session."""
    instruction: str
    """instruction of the task."""
    work: Path
    """the agent's working directory, as left by the agent."""
    artifacts: Path
    """the agent's artifacts."""
    scratch: Path
    """folder of the evaluator."""
    fresh: Path
    """prepared copy of ``source`` in ``scratch``, for evaluators with ``needs_fresh = True``."""
    execute: Callable[[Sequence[str], Path], ProcessExit]
    """runs a command in ``fresh``, in the task's runtime; output goes to the file."""
    source: Path | None = None
    """folder of which ``work`` was a copy."""
    records: Sequence[CompletionRecord] = ()
    """records of the session's requests."""
    episode: EnvironmentEpisode | None = None
    """episode of the session; None without an environment."""
    budget_s: float = 600.0
    """time limit of the evaluation, s."""
    environment_token: str | None = field(default=None, repr=False)
    """token of the environment's server."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """the submitter's own data."""


@dataclass(frozen=True)
class EvalResult:
    """Rewards of a session."""

    outcome_reward: float
    """reward of the session."""
    trace_rewards: Sequence[float | None] | None = None
    """reward of each trace; None, for one trace or for all, stands for the outcome."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """the evaluator's account of the rewards, JSON."""
    completion_rewards: Mapping[tuple[int, int], float] | None = None
    """reward of each completion, by record and choice, 0 where missing. None where the evaluator
    does not reward completions."""


class Evaluator(Protocol):
    """An evaluator; ``evaluate`` runs in its own thread and may block."""

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """The rewards of a session.

        Raises:
          InputError: the evaluation failed; the session ends with this reason.
        """
        ...
