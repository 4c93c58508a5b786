"""Grades an episode that an agent played on an environment's server."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.client import ConnectionLost, ServeClient, ServerError
from jaxserve.errors import InputError
from jaxserve.rollouts.evaluators.credit import Key, find_tool_calls, window_owners
from jaxserve.rollouts.evaluators.interface import EnvironmentEpisode, EvalResult, EvaluationContext
from jaxserve.rollouts.traces import Trajectory


class EnvGrade:
    """Rewards every trace with the score of the episode, which the server computes by replay.

    A window's reward goes to the completion whose tool call played the window.
    """

    def __init__(self, options: JsonObject) -> None:
        """Options: ``tool``, the name of the tool that plays a window (``step``)."""
        known = JsonObject(options, options.where, ("tool",))
        self._tool = known.text("tool") if "tool" in known else "step"

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """See the class.

        Raises:
          InputError: the session has no episode, or the server does not answer.
        """
        episode = context.episode
        if episode is None:
            raise InputError("evaluator is 'env_grade'; the task must have an environment")
        try:
            with ServeClient(
                episode.url, token=context.environment_token, patience_s=context.budget_s
            ) as client:
                client.attach(episode.session_id)
                log, grade = client.episode_log(), client.grade()
        except (ServerError, ConnectionLost) as error:
            raise InputError(f"the environment at {episode.url} gives no grade: {error}") from None
        # The graded episode may have begun after the log was read.
        graded = log | {"episode_number": grade["episode_number"]}
        if (other := _other_episode(episode, log) or _other_episode(episode, graded)) is not None:
            return EvalResult(0.0, metadata={"reason": other}, completion_rewards={})
        windows = [entry for entry in log["episode_log"] if "action" in entry]
        owners = window_owners(
            find_tool_calls(context.records, self._tool), [w["action"] for w in windows]
        )
        rewards: defaultdict[Key, float] = defaultdict(float)
        for owner, window in zip(owners, windows, strict=True):
            if owner is not None:
                rewards[owner] += window["reward"]
        metadata = {
            "score": grade["score"],
            "breakdown": grade["breakdown"],
            "feedback": grade["feedback"],
            "verified": grade["verified"],
            "windows": len(windows),
            "windows_without_completion": owners.count(None),
            "windows_driven": grade["windows_driven"],
            "completions": [[*key, reward] for key, reward in sorted(rewards.items())],
        }
        if grade["windows_driven"]:
            metadata["reason"] = (
                f"an agent of the server's own played {grade['windows_driven']} of its windows"
            )
        elif not grade["verified"]:
            metadata["reason"] = "the episode is not verified"
        if "reason" in metadata:
            return EvalResult(0.0, metadata=metadata, completion_rewards={})
        return EvalResult(float(grade["score"]), metadata=metadata, completion_rewards=rewards)


def _other_episode(begun: EnvironmentEpisode, log: dict[str, Any]) -> str | None:
    """The difference from the episode that the service began: an agent may not choose an easier
    one."""
    for name in ("episode_id", "episode_number", "task_id", "seed", "split"):
        if log[name] != getattr(begun, name):
            return (
                f"{name} is {log[name]!r}; the episode that was begun has {getattr(begun, name)!r}"
            )
    return None
