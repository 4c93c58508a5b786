"""Evaluators as users write them."""

from __future__ import annotations

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.evaluators import EvalResult, EvaluationContext
from jaxserve.rollouts.traces import Trajectory


class Worth:
    """An evaluator that gives the reward in its options."""

    def __init__(self, options: JsonObject) -> None:
        """Options: ``worth`` of the whole, ``traces``, of each trace (none), and ``completions``:
        record, choice and reward (none)."""
        self._worth = options.number("worth", 0, 1)
        self._traces = options.get("traces")
        self._completions = options.get("completions")

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """Says beside it what the agent was told."""
        told = {"told": context.instruction, "records": len(context.records)}
        earned = self._completions
        if earned is not None:
            earned = {(seq, choice): reward for seq, choice, reward in earned}
        return EvalResult(self._worth, self._traces, told, earned)


class NoEvaluator:
    """Cannot evaluate."""

    def __init__(self, options: JsonObject) -> None:
        """Takes anything."""


class Broken:
    """Cannot be made."""

    def __init__(self, options: JsonObject) -> None:
        """Takes nothing."""
        raise RuntimeError("no weights")


class Fails:
    """Cannot tell what a session is worth."""

    def __init__(self, options: JsonObject) -> None:
        """Options: ``how`` it fails."""
        self._how = options.text("how")

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """Raises, or gives what is no reward."""
        if self._how == "refuses":
            raise InputError("the judge is away")
        if self._how == "breaks":
            raise RuntimeError("no weights")
        if self._how == "no_json":
            return EvalResult(1.0, metadata={"judge": object()})
        return EvalResult(float("nan"))
