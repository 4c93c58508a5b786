"""Converts traces to the inputs of trainers.

The forms are those of slime's ``Sample`` (``slime/utils/types.py``), of verl's ``AgentLoopOutput``
(``verl/experimental/agent_loop``), and of a ``rollout_func`` of TRL's ``GRPOTrainer``. This module
imports no trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.rollouts.export import logprob_fault
from jaxserve.rollouts.traces import COMPLETED, COMPLETION_REWARDS, ERROR, TokenTrace, Trajectory

Decode = Callable[[list[int]], str]


def slime_samples(
    group: Sequence[Trajectory], *, group_index: int, first_rollout: int, decode: Decode
) -> list[dict[str, Any]]:
    """Arguments of slime's ``Sample.from_dict``, for each trace of one task's trajectories.

    All traces of a trajectory have the same ``rollout_id``: slime's loss and advantages count them
    as one rollout. slime v0.3.0 calls that ``group_id``; both are given, and ``from_dict`` keeps an
    unknown field as an attribute. slime uses the log-probabilities with ``--use-rollout-logprobs
    --use-tis``.

    Args:
      group: graded trajectories of one task.
      group_index: number of the task.
      first_rollout: ``rollout_id`` of the first trajectory; later ones count on from it.
      decode: function from token ids to text.

    Raises:
      InputError: a trace has no reward, or was not ``exported``.
    """
    samples = []
    for rollout, trajectory in enumerate(group, first_rollout):
        for trace in trajectory.traces:
            fields = _lists(trace)
            prompt, response = fields["prompt_ids"], fields["response_ids"]
            samples.append(
                {
                    "group_index": group_index,
                    "index": len(samples),
                    "rollout_id": rollout,
                    "group_id": rollout,
                    "prompt": decode(prompt),
                    "tokens": prompt + response,
                    "response": decode(response),
                    "response_length": len(response),
                    "reward": _reward(trace),
                    "loss_mask": fields["loss_mask"],
                    "rollout_log_probs": fields["response_logprobs"],
                    "weight_versions": [
                        version
                        for version in trace.metadata.get("weight_versions", ())
                        if version is not None
                    ],
                    "remove_sample": trace.trainable == 0,
                    "status": _slime_status(trajectory, trace),
                    "metadata": {**trace.metadata},
                }
            )
    return samples


def verl_outputs(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Arguments of verl's ``AgentLoopOutput``, for each trace.

    Raises:
      InputError: a trace has no reward, or was not ``exported``.
    """
    outputs = []
    for trace in trajectory.traces:
        fields = _lists(trace)
        outputs.append(
            {
                "prompt_ids": fields["prompt_ids"],
                "response_ids": fields["response_ids"],
                "response_mask": fields["loss_mask"],
                "response_logprobs": fields["response_logprobs"],
                "reward_score": _reward(trace),
                "num_turns": sum(_is_turn(message) for message in trace.messages),
                "metrics": {},
                "extra_fields": {**trace.metadata},
            }
        )
    return outputs


def trl_rollout(traces: Sequence[TokenTrace]) -> dict[str, list[Any]]:
    """The return value of a ``rollout_func`` of TRL's ``GRPOTrainer``.

    TRL expects one sequence for each prompt, in the order of the prompts. ``env_mask`` is 0 for
    tokens that the model did not sample. TRL passes ``reward``, as every unknown field, to the
    trainer's reward functions.

    Raises:
      InputError: a trace has no reward, or was not ``exported``.
    """
    rows = [_lists(trace) for trace in traces]
    return {
        "prompt_ids": [row["prompt_ids"] for row in rows],
        "completion_ids": [row["response_ids"] for row in rows],
        "logprobs": [row["response_logprobs"] for row in rows],
        "env_mask": [row["loss_mask"] for row in rows],
        "reward": [_reward(trace) for trace in traces],
    }


def token_rewards(trace: TokenTrace) -> np.ndarray:
    """Rewards by token, float32 ``[R]``: each completion's at its last token, 0 elsewhere.

    These rewards are separate from ``reward``, not a part of it.

    Raises:
      InputError: the evaluator did not reward completions.
    """
    earned = trace.metadata.get(COMPLETION_REWARDS)
    if earned is None:
        raise InputError(f"metadata of a trace has no {COMPLETION_REWARDS}; env_grade gives them")
    found = np.zeros(len(trace.response_ids), np.float32)
    for (*_, stop), reward in zip(trace.metadata["completions"], earned, strict=True):
        found[stop - 1] = reward
    return found


def _lists(trace: TokenTrace) -> dict[str, list[Any]]:
    """The arrays of a trace as lists."""
    if (fault := logprob_fault(trace)) is not None:
        raise InputError(f"a trace has {fault}; it must have gone through exported()")
    names = ("prompt_ids", "response_ids", "loss_mask", "response_logprobs")
    fields = {name: getattr(trace, name).tolist() for name in names}
    marked = zip(fields["response_logprobs"], fields["loss_mask"], strict=True)
    fields["response_logprobs"] = [value if mask else 0.0 for value, mask in marked]
    return fields


def _reward(trace: TokenTrace) -> float:
    """The reward of a graded trace."""
    return checks.number("reward of a trace", trace.reward)


def _slime_status(trajectory: Trajectory, trace: TokenTrace) -> str:
    """A value of slime's ``Sample.Status``."""
    if trajectory.status == ERROR:
        return "failed"
    if trace.finish_reason == "abort":
        return "aborted"
    whole = trajectory.status == COMPLETED and trace.finish_reason != "length"
    return "completed" if whole else "truncated"


def _is_turn(message: Any) -> bool:
    """Whether verl counts a message as a turn: one of a user, an assistant or a tool."""
    return isinstance(message, dict) and message.get("role") in ("user", "assistant", "tool")
