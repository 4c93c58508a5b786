"""Evaluators: rewards of a session from its trajectory.

An evaluator is constructed from its options and has ``evaluate(trajectory, context)``. A task names
a class of its own as ``module:Class``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.rollouts.evaluators.env_grade import EnvGrade
from jaxserve.rollouts.evaluators.interface import (
    EnvironmentEpisode,
    EvalResult,
    EvaluationContext,
    Evaluator,
)
from jaxserve.rollouts.evaluators.output_tests import OutputTests
from jaxserve.rollouts.traces import COMPLETED, Trajectory
from jaxserve.rollouts.user_classes import constructed, named_class


class SessionCompleted:
    """Reward 1 where the agent succeeded and has trainable tokens, else 0."""

    def __init__(self, options: JsonObject) -> None:
        """Takes no options."""
        JsonObject(options, options.where, ())

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """See the class."""
        done = trajectory.status == COMPLETED and trajectory.trainable > 0
        return EvalResult(float(done), metadata={"status": trajectory.status})


BUILT_IN: Mapping[str, Any] = {
    "session_completed": SessionCompleted,
    "test_on_output": OutputTests,
    "env_grade": EnvGrade,
}
"""Evaluators by name."""

__all__ = [
    "BUILT_IN",
    "EnvironmentEpisode",
    "EvalResult",
    "EvaluationContext",
    "Evaluator",
    "parse_evaluator",
]


def parse_evaluator(given: JsonObject) -> Evaluator:
    """The evaluator of a task: ``name``, and options in the other fields.

    Raises:
      InputError: the name is unknown, or an option is wrong.
    """
    name = given.text("name")
    options = JsonObject({key: given[key] for key in given if key != "name"}, given.where)
    where = given.name("name")
    make = partial(named_class(where, name, BUILT_IN), options)
    return constructed(where, name, make, ("evaluate",))
