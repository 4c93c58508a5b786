"""Speed of the learner: windows per second of whole PPO updates, and seconds to compile one."""

from __future__ import annotations

import time

import jax

import jaxserve
from benchmarks.environment import median_s
from jaxserve.agents.ppo import Learner, PPOConfig

_UPDATES = 5


def ppo_windows_per_s(task: str, environments: int, seeds: int = 1) -> tuple[float, float]:
    """Windows per second end to end, and seconds to compile.

    Args:
      environments: of each seed.
      seeds: policies trained side by side; the speed is that of all of them together.
    """
    config = PPOConfig(environments=environments)
    learner = Learner.create(jaxserve.make(task), config)
    keys = jax.random.split(jax.random.key(0), seeds)
    state = jax.jit(jax.vmap(learner.init))(keys)
    start = time.perf_counter()
    update = jax.jit(jax.vmap(learner.update)).lower(state).compile()
    compile_s = time.perf_counter() - start

    def run():
        current = state
        for _ in range(_UPDATES):
            current, _ = update(current)
        jax.block_until_ready(current)

    windows = _UPDATES * seeds * environments * config.rollout_windows
    return windows / median_s(run), compile_s
