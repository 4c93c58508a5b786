"""What a session is worth: evaluators of its trajectory.

An evaluator is made of its options and has ``evaluate(trajectory, context)``. Own classes are named
``module:Class`` and are made the same way.
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
from jaxserve.rollouts.evaluators.session_completed import SessionCompleted

BUILT_IN: Mapping[str, Any] = {
    "session_completed": SessionCompleted,
    "test_on_output": OutputTests,
    "env_grade": EnvGrade,
}
"""Evaluators by their names."""

__all__ = [
    "BUILT_IN",
    "EnvironmentEpisode",
    "EvalResult",
    "EvaluationContext",
    "Evaluator",
    "parse_evaluator",
]


def parse_evaluator(given: JsonObject) -> Evaluator:
    """The evaluator that ``name`` says, made of the other fields.

    Raises:
      InputError: there is none of that name, or its options are wrong.
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
