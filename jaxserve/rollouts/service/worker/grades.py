"""Checks an evaluator's result and writes it into a session's trajectory and result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from jaxserve.checks import number, refuse
from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.evaluators import EvalResult
from jaxserve.rollouts.service.state.lifecycle import SessionRow
from jaxserve.rollouts.traces import COMPLETION_REWARDS, TokenTrace, Trajectory


@dataclass(frozen=True)
class SessionGrade:
    """Rewards of a session; None where the evaluation failed."""

    outcome: float | None
    """reward of the session."""
    of_traces: Sequence[float | None]
    """reward of each trace."""
    of_completions: Mapping[tuple[int, int], float] | None = None
    """reward of each completion, by record and choice."""
    metadata: Any = None
    """the evaluator's account of the grade, JSON."""


def check_grade(
    records: Sequence[CompletionRecord], trajectory: Trajectory, evaluation: EvalResult
) -> SessionGrade:
    """An evaluator's result as a grade.

    Raises:
      InputError: the result does not fit records and traces, or its metadata is not JSON.
    """
    given = evaluation.trace_rewards
    of_traces = [None] * len(trajectory.traces) if given is None else list(given)
    if len(of_traces) != len(trajectory.traces):
        raise InputError(
            f"trace_rewards has {len(of_traces)} entries; it must have one for each of "
            f"{len(trajectory.traces)} traces"
        )
    outcome = number("outcome_reward", evaluation.outcome_reward)
    rewards = [outcome if one is None else number("trace_rewards", one) for one in of_traces]
    of_completions = evaluation.completion_rewards
    if of_completions is not None:
        known = {(record.seq, choice.index) for record in records for choice in record.choices}
        if unknown := [key for key in of_completions if key not in known]:
            refuse("completion_rewards", unknown[0], "of a record and choice of the session")
        of_completions = {
            key: number("completion_rewards", one) for key, one in of_completions.items()
        }
    try:
        metadata = orjson.loads(orjson.dumps(evaluation.metadata))
    except orjson.JSONEncodeError as error:
        raise InputError(f"metadata of the evaluation must be JSON: {error}") from None
    return SessionGrade(outcome, rewards, of_completions, metadata)


def apply_grade(
    session: SessionRow, trajectory: Trajectory, grade: SessionGrade
) -> tuple[Trajectory, dict[str, Any]]:
    """The trajectory with its rewards, and the session's result."""
    names = {"task": session.task, "session": session.id}
    traces = tuple(
        replace(
            trace,
            reward=reward,
            metadata={**trace.metadata, **names, **_credit(trace, grade.of_completions)},
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


def _credit(
    trace: TokenTrace, of_completions: Mapping[tuple[int, int], float] | None
) -> dict[str, Any]:
    """Metadata with the reward of each completion of a trace, where the evaluator gives them."""
    if of_completions is None:
        return {}
    spans = trace.metadata["completions"]
    return {
        COMPLETION_REWARDS: [of_completions.get((seq, choice), 0.0) for seq, choice, *_ in spans]
    }
