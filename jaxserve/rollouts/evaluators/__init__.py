"""Evaluators: rewards of a session from its trajectory.

An evaluator is constructed from its options and has ``evaluate(trajectory, context)``. A task names
a class of its own as ``module:Class``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from jaxserve.checks import JsonObject, refuse
from jaxserve.errors import InputError
from jaxserve.rollouts.evaluators.env_grade import EnvGrade
from jaxserve.rollouts.evaluators.interface import (
    EnvironmentEpisode,
    EvalResult,
    EvaluationContext,
    Evaluator,
)
from jaxserve.rollouts.evaluators.output_tests import OutputTests
from jaxserve.rollouts.traces import COMPLETED, Trajectory


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
    made = BUILT_IN.get(name) or _imported(given.name("name"), name)
    try:
        evaluator = made(options)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{given.name('name')} is {name!r}; it cannot be made: {error}") from None
    if not callable(getattr(evaluator, "evaluate", None)):
        refuse(given.name("name"), name, "a class with the method evaluate")
    return evaluator


def _imported(where: str, name: str) -> Any:
    module, colon, attribute = name.partition(":")
    allowed = f"one of {', '.join(BUILT_IN)}, or module:Class of a class that can be imported"
    if not colon or not module or module.startswith("."):
        refuse(where, name, allowed)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception:
        refuse(where, name, allowed)
