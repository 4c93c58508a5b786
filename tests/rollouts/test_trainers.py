"""Each trainer gets the same tokens, in its own words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.files import parse_trajectory, trajectory_line
from jaxserve.rollouts.traces import TokenTrace, Trajectory
from jaxserve.rollouts.trainers import slime_samples, token_rewards, trl_rollout, verl_outputs

SLIME_FIELDS = {
    "group_index",
    "index",
    "rollout_id",
    "prompt",
    "tokens",
    "response",
    "response_length",
    "reward",
    "loss_mask",
    "weight_versions",
    "rollout_log_probs",
    "remove_sample",
    "status",
    "metadata",
}
"""Fields of ``Sample`` in releases with ``rollout_id``."""


def trace(**more: Any) -> TokenTrace:
    """Two tokens of prompt, a sampled one, one between, a sampled one."""
    fields: dict[str, Any] = {
        "prompt_ids": np.array([65, 66], np.int32),
        "response_ids": np.array([67, 68, 69], np.int32),
        "loss_mask": np.array([1, 0, 1], np.uint8),
        "response_logprobs": np.array([-0.5, np.nan, -0.25], np.float32),
        "messages": (
            {"role": "system", "content": "s"},
            {"role": "user", "content": "AB"},
            {"role": "assistant", "content": "C"},
            {"role": "tool", "content": "D"},
            {"role": "assistant", "content": "E"},
        ),
        "finish_reason": "stop",
        "reward": 0.75,
        "metadata": {"weight_versions": ["7", None], "session": "s"},
    }
    return TokenTrace(**{**fields, **more})


def text(ids: list[int]) -> str:
    """A token is a character."""
    return "".join(map(chr, ids))


def test_slime() -> None:
    """All fields; traces of one trajectory are one rollout; the mask's zeros have 0.0."""
    pair = exported(Trajectory("COMPLETED", (trace(), trace(finish_reason="length"))))
    late = exported(Trajectory("TIMEOUT", (trace(reward=0.0),)))
    samples = slime_samples([pair, late], group_index=3, first_rollout=8, decode=text)
    first = samples[0]
    assert first == {
        "group_index": 3,
        "index": 0,
        "rollout_id": 8,
        "group_id": 8,
        "prompt": "AB",
        "tokens": [65, 66, 67, 68, 69],
        "response": "CDE",
        "response_length": 3,
        "reward": 0.75,
        "loss_mask": [1, 0, 1],
        "rollout_log_probs": [-0.5, 0.0, -0.25],
        "weight_versions": ["7"],
        "remove_sample": False,
        "status": "completed",
        "metadata": {"weight_versions": ["7", None], "session": "s"},
    }
    assert set(first) - {"group_id"} == SLIME_FIELDS
    assert [one["rollout_id"] for one in samples] == [8, 8, 9]
    assert [one["index"] for one in samples] == [0, 1, 2]
    assert [one["status"] for one in samples] == ["completed", "truncated", "truncated"]


@pytest.mark.parametrize(
    ("status", "finish", "said"),
    [
        ("COMPLETED", "tool_calls", "completed"),
        ("COMPLETED", "abort", "aborted"),
        ("ERROR", "stop", "failed"),
        ("ERROR", "abort", "failed"),
    ],
)
def test_status_of_slime(status: str, finish: str, said: str) -> None:
    """The session's end comes before the answer's."""
    one = exported(Trajectory(status, (trace(finish_reason=finish),)))
    (sample,) = slime_samples([one], group_index=0, first_rollout=0, decode=text)
    assert sample["status"] == said


def test_a_masked_trace_is_removed() -> None:
    """slime divides by the trainable tokens."""
    bad = trace(response_logprobs=np.array([np.nan, 0, np.nan], np.float32))
    one = exported(Trajectory("COMPLETED", (bad,)))
    (sample,) = slime_samples([one], group_index=0, first_rollout=0, decode=text)
    assert sample["remove_sample"] and sample["loss_mask"] == [0, 0, 0]


def test_verl() -> None:
    """The arguments of ``AgentLoopOutput``; the system's message is no turn."""
    (output,) = verl_outputs(exported(Trajectory("COMPLETED", (trace(),))))
    assert output == {
        "prompt_ids": [65, 66],
        "response_ids": [67, 68, 69],
        "response_mask": [1, 0, 1],
        "response_logprobs": [-0.5, 0.0, -0.25],
        "reward_score": 0.75,
        "num_turns": 4,
        "metrics": {},
        "extra_fields": {"weight_versions": ["7", None], "session": "s"},
    }


def test_rewards_by_token() -> None:
    """A completion's own at its last token, also after a way through a file; the trace's is apart.
    Where nobody told completions apart there are none."""
    earned = {"completions": [(1, 0, 0, 1), (2, 0, 2, 3)], "completion_rewards": [0.5, -0.25]}
    graded = trace(metadata=earned)
    read = parse_trajectory(trajectory_line(Trajectory("COMPLETED", (graded,)))).traces[0]
    for one in (graded, read):
        found = token_rewards(one)
        assert found.dtype == np.float32 and found.tolist() == [0.5, 0.0, -0.25]
        assert one.reward == 0.75
    with pytest.raises(InputError, match="has no completion_rewards"):
        token_rewards(trace())


def test_trl() -> None:
    """Lists with a place for each prompt."""
    (one,) = exported(Trajectory("COMPLETED", (trace(),))).traces
    assert trl_rollout([one, replace(one, reward=0.0)]) == {
        "prompt_ids": [[65, 66]] * 2,
        "completion_ids": [[67, 68, 69]] * 2,
        "logprobs": [[-0.5, 0.0, -0.25]] * 2,
        "env_mask": [[1, 0, 1]] * 2,
        "reward": [0.75, 0.0],
    }


def test_what_is_refused() -> None:
    """A trace without a reward, and one with a token that has no log-probability."""
    ungraded = exported(Trajectory("COMPLETED", (trace(reward=None),)))
    raw = Trajectory("COMPLETED", (trace(response_logprobs=np.full(3, np.nan, np.float32)),))
    for trajectory, said in ((ungraded, "reward of a trace is None"), (raw, "logprob_missing")):
        with pytest.raises(InputError, match=said):
            slime_samples([trajectory], group_index=0, first_rollout=0, decode=text)
        with pytest.raises(InputError, match=said):
            verl_outputs(trajectory)
        with pytest.raises(InputError, match=said):
            trl_rollout(trajectory.traces)
