"""Rollout function of slime, for its ``--rollout-function-path``, by a rollout service.

    --rollout-function-path jaxserve.rollouts.slime.generate_rollout
    --custom-reward-post-process-path jaxserve.rollouts.slime.leave_one_out
    --custom-config-path jaxserve.yaml --use-rollout-logprobs --use-tis

The YAML file has ``jaxserve_service``, the service's address, and ``jaxserve_task``, a task without
the fields that slime sets: the instruction is the sample's prompt, and ``num_samples`` the size of
the group. ``metadata["jaxserve"]`` of a sample has other fields of its task.
``jaxserve_eval_tasks`` has lists of whole tasks by the name of their evaluation. slime is imported
only when it calls; its interface is the same in v0.3.0 and v0.3.1, but for a field of samples.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from jaxserve.checks import JsonObject, address
from jaxserve.errors import InputError
from jaxserve.rollouts.files import parse_trajectory
from jaxserve.rollouts.service.client import service_client
from jaxserve.rollouts.traces import TokenTrace, Trajectory
from jaxserve.rollouts.trainers import Decode, slime_samples

POLL_S = 2.0
"""Interval at which running tasks are polled."""
_TRIES = 150
"""Polls that may fail in a row: a restarted service continues its tasks."""
_PLACEHOLDERS = {"TIMEOUT": "truncated", "ERROR": "failed"}
_REMOVED = ("failed", "aborted")
_NUMBER = re.compile(r"(?:^|[^A-Za-z0-9.])[A-Za-z]*([0-9]+)\Z")
"""End of a version's name: a whole number, after letters or none."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """The samples of a step, or of an evaluation, for slime.

    Args:
      args: slime's arguments, with the fields of the YAML file.
      rollout_id: number of the step.
      data_source: source of prompts with ``get_samples``, not used by an evaluation.
      evaluation: whether slime evaluates.

    Returns:
      ``RolloutFnTrainOutput`` with samples by group, session and trace, or ``RolloutFnEvalOutput``.

    Raises:
      InputError: an argument is missing, or the service refuses a task.
    """
    # slime is installed only in its own environment.
    from slime.rollout.base_types import (  # type: ignore[import-not-found]
        RolloutFnEvalOutput,
        RolloutFnTrainOutput,
    )
    from slime.utils.processing_utils import load_tokenizer  # type: ignore[import-not-found]
    from slime.utils.types import Sample  # type: ignore[import-not-found]

    decode = load_tokenizer(args.hf_checkpoint, trust_remote_code=True).decode
    step = None if evaluation else rollout_id
    make = _SampleBuilder(Sample.from_dict, decode, getattr(args, "reward_key", None), step)
    if evaluation:
        return RolloutFnEvalOutput(data=_evaluated(args, make))
    groups = data_source.get_samples(args.rollout_batch_size)
    results = _played(args, build_tasks(args, rollout_id, groups))
    samples = [
        [
            make.samples(session, group[0].group_index, source)
            for session, source in zip(sessions, group, strict=True)
        ]
        for sessions, group in zip(results, groups, strict=True)
    ]
    return RolloutFnTrainOutput(samples=samples, metrics=step_metrics(results, rollout_id))


def build_tasks(
    args: Any, rollout_id: int, groups: Sequence[Sequence[Any]]
) -> list[dict[str, Any]]:
    """The task of each group of slime's samples, with a new name every time: a repeated step
    samples again.

    Raises:
      InputError: ``jaxserve_task`` is not an object.
    """
    given = JsonObject(getattr(args, "jaxserve_task", None), "jaxserve_task")
    tasks = []
    for group in groups:
        first = group[0]
        more = (first.metadata or {}).get("jaxserve", {})
        task = {
            **given,
            "instruction": prompt_text(first.prompt),
            **JsonObject(more, "metadata of a sample: jaxserve"),
            "num_samples": len(group),
            "task_id": f"slime-{rollout_id}-{first.group_index}-{secrets.token_hex(4)}",
        }
        metadata = {"rollout_id": rollout_id, "group_index": first.group_index}
        task["metadata"] = {**task.get("metadata", {}), **metadata}
        tasks.append(task)
    return tasks


def prompt_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """A prompt as one text; messages are marked with their roles where the roles differ."""
    if isinstance(prompt, str):
        return prompt
    several = len({message["role"] for message in prompt}) > 1
    parts = [(message["role"], _text(message.get("content"))) for message in prompt]
    return "\n\n".join(f"[{role}] {text}" if several else text for role, text in parts)


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))
    return str(content or "")


@dataclass(frozen=True)
class _EndedSession:
    """An ended session."""

    state: str
    reward: float | None
    trajectory: Trajectory | None
    """trajectory of the session; None without one, without tokens, or without a grade."""


@dataclass(frozen=True)
class _SampleBuilder:
    """Builds slime's samples."""

    from_dict: Callable[[dict[str, Any]], Any]
    decode: Decode
    reward_key: str | None
    rollout_id: int | None
    """number of the step; None in an evaluation."""

    def samples(self, session: _EndedSession, group_index: int, source: Any) -> list[Any]:
        """Samples of a session: one for each trace, or a placeholder without trainable tokens,
        since slime counts rollouts.

        Args:
          source: slime's sample with the prompt.
        """
        rows = self.rows(session, group_index, source.index)
        return [self.from_dict({**row, "label": source.label}) for row in rows]

    def rows(self, session: _EndedSession, group_index: int, index: int) -> list[dict[str, Any]]:
        """``samples`` as dicts of fields."""
        if session.trajectory is None:
            rows = [_placeholder(session, group_index, index)]
        else:
            rows = slime_samples(
                [session.trajectory],
                group_index=group_index,
                first_rollout=index,
                decode=self.decode,
            )
        more: dict[str, Any] = {"index": index}
        for row in rows:
            if self.reward_key is not None:
                more["reward"] = {self.reward_key: row["reward"]}
            row.update(more)
            if self.rollout_id is not None:
                policy = _policy(row["metadata"], self.rollout_id)
                row["metadata"] |= policy
                row["train_metadata"] = policy  # slime needs the field on all samples or on none
        return rows


def policy_version(versions: Iterable[str | None]) -> int | None:
    """The lowest version of the weights that sampled: the number at the end of a name, as in
    ``20``, ``v20``, ``step-20`` and ``llama3/step_20``. None where a version has no name, or no
    such number: ``step-12b3`` and ``1.5`` count nothing known."""
    found = [_NUMBER.search(version or "") for version in versions]
    numbers = [int(one[1]) for one in found if one is not None]
    return min(numbers) if numbers and len(numbers) == len(found) else None


def _policy(metadata: Mapping[str, Any], rollout_id: int) -> dict[str, int | None]:
    """Version and staleness, in steps, of the weights of a trace, for slime's ``train_metadata``.

    A version is the number of the first step that samples with the weights. A version above the
    step's number does not count steps, and its staleness is unknown.
    """
    version = policy_version(metadata.get("weight_versions", ()))
    staleness = None if version is None or version > rollout_id else rollout_id - version
    return {"policy_version": version, "policy_staleness": staleness}


def _placeholder(session: _EndedSession, group_index: int, index: int) -> dict[str, Any]:
    return {
        "group_index": group_index,
        "rollout_id": index,
        "group_id": index,
        "tokens": [0, 0],
        "response_length": 1,
        "reward": 0.0,
        "loss_mask": [0],
        "rollout_log_probs": [0.0],
        "remove_sample": True,
        "status": _PLACEHOLDERS.get(session.state, "aborted"),
        "metadata": {"placeholder": True},
    }


def _evaluated(args: Any, make: _SampleBuilder) -> dict[str, dict[str, list[Any]]]:
    """Samples of each evaluation: one for every session, with the session's reward."""
    named = JsonObject(getattr(args, "jaxserve_eval_tasks", None), "jaxserve_eval_tasks")
    found = {}
    for name in named:
        tasks = [
            {**JsonObject(task, f"jaxserve_eval_tasks: {name}")} for task in named.entries(name)
        ]
        rewards, samples = [], []
        for group_index, sessions in enumerate(_played(args, tasks)):
            for session in sessions:
                rows = make.rows(session, group_index, len(samples))
                longest = max(rows, key=lambda row: sum(row["loss_mask"]))
                samples.append(make.from_dict(longest))
                rewards.append(session.reward or 0.0)
        truncated = [sample.status.value == "truncated" for sample in samples]
        found[name] = {"rewards": rewards, "truncated": truncated, "samples": samples}
    return found


def step_metrics(results: Iterable[Iterable[_EndedSession]], rollout_id: int) -> dict[str, float]:
    """Metrics of a step for slime's log: each session counts once, whatever its number of traces;
    staleness is that of the stalest trace."""
    sessions = [session for group in results for session in group]
    completed = [session for session in sessions if session.state == "COMPLETED"]
    graded = [
        one.reward for one in completed if one.trajectory is not None and one.reward is not None
    ]
    found = {
        "jaxserve/sessions": float(len(sessions)),
        "jaxserve/completed": len(completed) / max(1, len(sessions)),
        "jaxserve/without_a_trace": float(sum(one.trajectory is None for one in sessions)),
    }
    if graded:
        found["jaxserve/reward_of_completed"] = sum(graded) / len(graded)
    traces = [one for session in sessions for one in _traces(session)]
    ages = [_policy(trace.metadata, rollout_id)["policy_staleness"] for trace in traces]
    if known := [age for age in ages if age is not None]:
        found["jaxserve/policy_staleness"] = float(max(known))
    return found


def _traces(session: _EndedSession) -> Sequence[TokenTrace]:
    return () if session.trajectory is None else session.trajectory.traces


def leave_one_out(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Rewards minus the mean reward of the group's other rollouts.

    slime's own normalisation treats all samples of a step as one group where sessions have several
    traces. A rollout's reward is the mean of its traces'. A rollout that failed or has no trainable
    token is no baseline for others, and gets 0. slime's ``--disable-rewards-normalization``
    applies.
    """
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    if not args.rewards_normalization:
        return raw, list(raw)
    rollouts: dict[Any, dict[Any, list[float]]] = {}
    for sample, reward in zip(samples, raw, strict=True):
        if _counts(sample):
            group = rollouts.setdefault(sample.group_index, {})
            group.setdefault(_rollout_of(sample), []).append(reward)
    means = {
        group: {rollout: sum(rewards) / len(rewards) for rollout, rewards in found.items()}
        for group, found in rollouts.items()
    }
    return raw, [
        reward - _baseline(means[sample.group_index], _rollout_of(sample))
        if _counts(sample)
        else 0.0
        for sample, reward in zip(samples, raw, strict=True)
    ]


def _baseline(means: Mapping[Any, float], rollout: Any) -> float:
    others = [mean for one, mean in means.items() if one != rollout]
    return sum(others) / len(others) if others else 0.0


def _counts(sample: Any) -> bool:
    trains = not sample.remove_sample and any(sample.loss_mask)
    return trains and sample.status.value not in _REMOVED


def _rollout_of(sample: Any) -> Any:
    """The rollout of a sample: ``group_id`` in slime v0.3.0, ``rollout_id`` in v0.3.1."""
    found = getattr(sample, "group_id", None)
    return sample.rollout_id if found is None else found


def _played(args: Any, tasks: Sequence[dict[str, Any]]) -> list[list[_EndedSession]]:
    """Submits tasks, waits for their ends, and fetches their trajectories; cancels them on
    failure."""
    url = address("jaxserve_service", getattr(args, "jaxserve_service", None)).rstrip("/")
    with service_client(url) as http:
        http.base_url = url
        names: list[str] = []
        try:
            for task in tasks:
                names.append(_json(http, "/rollout/task/submit", task)["task_id"])
            return [_sessions(http, name) for name in names]
        except BaseException:
            for name in names:
                with suppress(httpx.HTTPError):
                    http.post(f"/rollout/task/{quote(name)}/cancel")
            raise


def _sessions(http: httpx.Client, task: str) -> list[_EndedSession]:
    path = f"/rollout/task/{quote(task)}"
    while not (found := _json(http, path))["ended"]:
        time.sleep(POLL_S)
    sessions = []
    for session in sorted(found["sessions"], key=lambda one: one["sample"]):
        answer = _answer(http, f"/sessions/{quote(session['session_id'])}/trajectory")
        trajectory = parse_trajectory(answer.content) if answer.is_success else None
        if trajectory is not None and not trajectory.graded:
            trajectory = None
        sessions.append(_EndedSession(session["state"], session.get("reward"), trajectory))
    return sessions


def _json(http: httpx.Client, path: str, body: Any = None) -> dict[str, Any]:
    """The JSON of the service's answer.

    Raises:
      InputError: the service refuses; the error is its sentence.
    """
    answer = _answer(http, path, body)
    if answer.is_error:
        message = f"the service answers {answer.status_code} to {path}"
        with suppress(ValueError, KeyError, TypeError):
            message = str(answer.json()["error"]["message"])
        raise InputError(message)
    return answer.json()


def _answer(http: httpx.Client, path: str, body: Any = None) -> httpx.Response:
    """An answer of the service, with retries while the service is away."""
    for _ in range(_TRIES):
        try:
            answer = http.get(path) if body is None else http.post(path, json=body)
        except httpx.TransportError as error:
            problem = str(error) or type(error).__name__
        else:
            if answer.status_code < 500:
                return answer
            problem = f"status {answer.status_code}"
        time.sleep(POLL_S)
    raise InputError(f"jaxserve_service is {http.base_url}, which does not answer: {problem}")
