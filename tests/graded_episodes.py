"""Episodes as clients send and log them, for tests of grades."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Any

import numpy as np

import jaxserve
from jaxserve.env import ServeEnv
from jaxserve.seeds import episode_key
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION
from jaxserve.tasks.reward import reweight
from tests.compiled_env import reset, step

HORIZON = 200
GRADED = ("static_workload", "bursty_workload", "adversarial_multitenant")
HARD = "adversarial_multitenant"
SEED = 3


def knobs(**changes: float) -> dict[str, float]:
    """One action as a client sends it."""
    return {**DEFAULT_ACTION, **changes}


GOOD = [knobs(batch_cap=64)] * HORIZON


def random_actions(seed: int, held: int = 10) -> list[dict[str, float]]:
    """Actions over the whole ranges, each held for some windows."""
    generator = np.random.default_rng(seed)
    drawn = [
        {
            knob: generator.integers(int(bound.low), int(bound.high) + 1).item()
            if bound.integer
            else generator.uniform(bound.low, bound.high)
            for knob, bound in ACTION_BOUNDS.items()
        }
        for _ in range(HORIZON // held)
    ]
    return [action for action in drawn for _ in range(held)]


@functools.cache
def environment(task: str) -> ServeEnv:
    """Nameless, so that all tasks share one program."""
    return jaxserve.make(task)


@functools.cache
def honest_log(task: str, seed: int, config: tuple[tuple[str, float], ...] = ()) -> list[Any]:
    """What a client writes down who plays window by window."""
    env = environment(task)
    env = dataclasses.replace(env, reward=reweight(env.reward, dict(config)))
    state, first = reset(env, episode_key(seed, "test"))

    def plain(values: Any) -> dict[str, Any]:
        return {name: np.asarray(value).tolist() for name, value in vars(values).items()}

    log = [{"observation": plain(first.observation), "reward": None}]
    for action in random_actions(seed):
        state, timestep = step(env, state, jaxserve.validate_action(action))
        log.append(
            {
                "action": action,
                "observation": plain(timestep.observation),
                "metrics": plain(timestep.parts),
                "reward": float(timestep.reward),
                "done": bool(timestep.truncated),
            }
        )
    return json.loads(json.dumps(log))
