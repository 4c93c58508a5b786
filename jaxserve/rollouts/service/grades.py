"""What an evaluator says of a session, checked, and written into its trajectory and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from jaxserve.checks import number, refuse
from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.evaluators import EvalResult
from jaxserve.rollouts.service.lifecycle import SessionRow
from jaxserve.rollouts.traces import COMPLETION_REWARDS, Trace, Trajectory


@dataclass(frozen=True)
class Grade:
    """What a session is worth; None where that cannot be told."""

    outcome: float | None
    """of the whole."""
    of_traces: Sequence[float | None]
    """of each trace."""
    of_completions: Mapping[tuple[int, int], float] | None = None
    """what completions earned, by record and choice."""
    metadata: Any = None
    """how it came about, JSON."""


def grade_of(
    records: Sequence[CompletionRecord], trajectory: Trajectory, worth: EvalResult
) -> Grade:
    """What an evaluator says, as it is kept.

    Raises:
      InputError: it does not fit what was said, or is no JSON.
    """
    given = worth.trace_rewards
    of_traces = [None] * len(trajectory.traces) if given is None else list(given)
    if len(of_traces) != len(trajectory.traces):
        raise InputError(
            f"trace_rewards has {len(of_traces)} entries; it must have one for each of "
            f"{len(trajectory.traces)} traces"
        )
    outcome = number("outcome_reward", worth.outcome_reward)
    rewards = [outcome if one is None else number("trace_rewards", one) for one in of_traces]
    earned = worth.completion_rewards
    if earned is not None:
        said = {(record.seq, choice.index) for record in records for choice in record.choices}
        if unknown := [key for key in earned if key not in said]:
            refuse("completion_rewards", unknown[0], "of a record and choice of the session")
        earned = {key: number("completion_rewards", one) for key, one in earned.items()}
    try:
        metadata = orjson.loads(orjson.dumps(worth.metadata))
    except orjson.JSONEncodeError as error:
        raise InputError(f"metadata of the evaluation must be JSON: {error}") from None
    return Grade(outcome, rewards, earned, metadata)


def graded(
    session: SessionRow, trajectory: Trajectory, grade: Grade
) -> tuple[Trajectory, dict[str, Any]]:
    """The trajectory with its rewards, and what is told of the ended session."""
    whose = {"task": session.task, "session": session.id}
    traces = tuple(
        replace(
            trace,
            reward=reward,
            metadata={**trace.metadata, **whose, **_credit(trace, grade.of_completions)},
        )
        for trace, reward in zip(trajectory.traces, grade.of_traces, strict=True)
    )
    result = {
        "reward": grade.outcome,
        "trace_rewards": grade.of_traces,
        "records": session.recorded,
        "attempt": session.attempt,
        "traces": len(trajectory.traces),
        "trainable": trajectory.trainable,
        "dropped": trajectory.dropped,
        "cuts": trajectory.cuts,
        "failures": trajectory.failures,
        "evaluation": grade.metadata,
    }
    return replace(trajectory, traces=traces), result


def _credit(trace: Trace, earned: Mapping[tuple[int, int], float] | None) -> dict[str, Any]:
    """What each of a trace's completions earned, where the evaluator says it."""
    if earned is None:
        return {}
    spans = trace.metadata["completions"]
    return {COMPLETION_REWARDS: [earned.get((seq, choice), 0.0) for seq, choice, *_ in spans]}
