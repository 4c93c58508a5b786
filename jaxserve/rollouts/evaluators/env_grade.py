"""The grade of an episode that an agent played on an environment's server."""

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
    """The outcome, and so the reward of every trace, is the score of the episode as the server
    replays it. A window's reward is that of the completion whose tool call made it."""

    def __init__(self, options: JsonObject) -> None:
        """Options: ``tool``, the name of the tool that makes a window (``step``)."""
        known = JsonObject(options, options.where, ("tool",))
        self._tool = known.text("tool") if "tool" in known else "step"

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """See the class.

        Raises:
          InputError: no episode was begun, or the server does not answer.
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
        # What is graded may have been begun after the log was read.
        told = log | {"episode_number": grade["episode_number"]}
        if (other := _other_episode(episode, log) or _other_episode(episode, told)) is not None:
            return EvalResult(0.0, metadata={"reason": other}, completion_rewards={})
        windows = [entry for entry in log["episode_log"] if "action" in entry]
        owners = window_owners(
            find_tool_calls(context.records, self._tool), [w["action"] for w in windows]
        )
        rewards: defaultdict[Key, float] = defaultdict(float)
        for owner, window in zip(owners, windows, strict=True):
            if owner is not None:
                rewards[owner] += window["reward"]
        said = {
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
            said["reason"] = (
                f"an agent of the server's own played {grade['windows_driven']} of its windows"
            )
        elif not grade["verified"]:
            said["reason"] = "the episode is not verified"
        if "reason" in said:
            return EvalResult(0.0, metadata=said, completion_rewards={})
        return EvalResult(float(grade["score"]), metadata=said, completion_rewards=rewards)


def _other_episode(begun: EnvironmentEpisode, log: dict[str, Any]) -> str | None:
    """What differs from the episode that was begun: an agent may not choose an easier one."""
    for name in ("episode_id", "episode_number", "task_id", "seed", "split"):
        if log[name] != getattr(begun, name):
            return (
                f"{name} is {log[name]!r}; the episode that was begun has {getattr(begun, name)!r}"
            )
    return None
