"""1 for a session that ended by itself and was recorded."""

from __future__ import annotations

from jaxserve.checks import JsonObject
from jaxserve.rollouts.evaluators.interface import EvalResult, EvaluationContext
from jaxserve.rollouts.traces import COMPLETED, Trajectory


class SessionCompleted:
    """1 where the agent succeeded and said something that can be trained on, else 0."""

    def __init__(self, options: JsonObject) -> None:
        """Takes no options."""
        JsonObject(options, options.where, ())

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """See the class."""
        done = trajectory.status == COMPLETED and trajectory.trainable > 0
        return EvalResult(float(done), metadata={"status": trajectory.status})
