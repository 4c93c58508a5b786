"""Descriptions of tasks for clients: knobs, objectives, weights, anchors, as plain data."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jaxserve.errors import InputError
from jaxserve.sim.traffic.lengths import LengthDistribution
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION
from jaxserve.tasks.anchors import load_anchors
from jaxserve.tasks.reward import REWARD_CONFIG
from jaxserve.tasks.spec import TaskSpec, task_names
from server.sessions.episodes import built_in_task, task_number


@functools.cache
def describe_task(name: str) -> dict[str, Any]:
    """Description of a task: deployment, knobs, objectives and anchors.

    ``memory_limit_gb`` is in GiB; its name is kept for clients of earlier projects.

    Raises:
      InputError: no such task.
    """
    spec = built_in_task(name)
    try:
        anchors = load_anchors(spec)
        scores = {
            "random": anchors.random,
            "best_static": anchors.best_static,
            "oracle": anchors.oracle,
            "best_static_action": dict(anchors.best_static_action),
        }
    except InputError:
        scores = None
    return {
        "id": task_number(name),
        "task_id": name,
        "name": name,
        "title": spec.title,
        "version": spec.version,
        "difficulty": spec.difficulty,
        "description": spec.description,
        "hardware": spec.hardware,
        "model": spec.model,
        "num_gpus": spec.deployment.num_gpus,
        "max_steps": spec.horizon,
        "episode_length": spec.horizon,
        "window_s": spec.window_s,
        "active_knobs": list(spec.knobs),
        "active_actions": list(spec.knobs),
        "knob_ranges": {knob: [bound.low, bound.high] for knob, bound in ACTION_BOUNDS.items()},
        "default_action": DEFAULT_ACTION | dict(spec.locked),
        "classes": [
            {
                "name": stream.name,
                "ttft_slo_ms": 1000.0 * stream.ttft_slo_s,
                "tpot_slo_ms": 1000.0 * stream.tpot_slo_s,
                "priority": stream.priority,
                "value": stream.value,
                "prompt_tokens": _lengths(spec, stream.prompt),
                "output_tokens": _lengths(spec, stream.output),
            }
            for stream in spec.streams
        ],
        "reward_weights": reward_weights(name),
        "memory_limit_gb": spec.objective.memory_limit_gib,
        "mean_reward_anchors": scores,
    }


def _lengths(spec: TaskSpec, lengths: LengthDistribution) -> list[int] | None:
    """The 5th and the 95th percentile, tokens; None where a recording has its own lengths."""
    return None if spec.trace else lengths.quantile((0.05, 0.95)).round().astype(int).tolist()


def describe_tasks() -> list[dict[str, Any]]:
    """All tasks, in order of difficulty."""
    return [describe_task(name) for name in task_names()]


def reward_weights(name: str) -> dict[str, float]:
    """The task's reward weights, by the names of ``reset(config=...)``."""
    objective = dataclasses.asdict(built_in_task(name).objective)
    return {short: objective[field] for short, field in REWARD_CONFIG.items()}
