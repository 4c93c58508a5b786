"""Speed of the learner: windows per second of whole PPO updates, and seconds to compile one."""

from __future__ import annotations

import time

import jax

import jaxserve
from benchmarks.environment import median_s
from jaxserve.learning.ppo import Learner
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.returns import task_discount
from jaxserve.learning.run_options import check_run
from jaxserve.tasks.anchors import load_anchors
from jaxserve.tasks.spec import load_task

_UPDATES = 5
_IN_A_ROW = 5


def ppo_windows_per_s(task: str, environments: int, seeds: int = 1) -> tuple[float, float]:
    """Windows per second end to end, and seconds to compile.

    Args:
      task: name of the task.
      environments: environments of each seed.
      seeds: policies trained side by side; the speed counts all of them.
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


def seconds_past_static(task: str, steps: int, learning_rate: float) -> tuple[float, int]:
    """Seconds and windows until PPO earns more than the best static setting.

    Seconds include making the environment and compiling. The exploring policy's mean reward over an
    update's windows must be above in five updates in a row.

    Args:
      task: name of the task.
      steps, learning_rate: options of the whole run, which stops early.
    """
    best_static = load_anchors(load_task(task)).best_static
    start = time.perf_counter()
    env = jaxserve.make(task)
    config = check_run(
        steps=steps,
        seed=0,
        seeds=1,
        environments=1024,
        learning_rate=learning_rate,
        discount=task_discount(env),
    )
    learner = Learner.create(env, config)
    state = jax.jit(learner.init)(jax.random.key(0))
    update = jax.jit(learner.update).lower(state).compile()
    above = 0
    for done in range(1, config.updates + 1):
        state, report = update(state)
        above = above + 1 if float(report.reward) > best_static else 0
        if above == _IN_A_ROW:
            return time.perf_counter() - start, done * config.windows
    return float("inf"), config.updates * config.windows
