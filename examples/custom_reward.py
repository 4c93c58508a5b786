"""Reward weights of your own: what the best KV budget is when memory is scarce.

Prints, for the task's own objective and for one with a lower memory limit, the mean reward of every
KV budget on the same episodes, and the best one.

    python examples/custom_reward.py --memory-limit-gib 24 --memory-weight 2
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import jax
import numpy as np

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.seeds import episode_keys

BUDGETS = (0.2, 0.4, 0.6, 0.8, 1.0)


def main() -> None:
    """Plays every budget under both objectives."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="bursty_workload", help="default %(default)s")
    parser.add_argument("--memory-limit-gib", type=float, default=24.0, help="default %(default)s")
    parser.add_argument("--memory-weight", type=float, default=2.0, help="default %(default)s")
    parser.add_argument("--episodes", type=int, default=4, help="default %(default)s")
    arguments = parser.parse_args()

    keys = episode_keys(arguments.episodes, "train")
    scarce = {
        "memory_limit_gib": arguments.memory_limit_gib,
        "memory_weight": arguments.memory_weight,
    }
    for name, objective in (("the task's own objective", {}), ("memory is scarce", scarce)):
        rewards = budget_rewards(arguments.task, objective, keys)
        print(name)
        for budget, reward in rewards.items():
            print(f"  KV budget {budget:.1f}  mean reward {reward:6.3f}")
        print(f"  best: {max(rewards, key=rewards.__getitem__):.1f}")


def budget_rewards(
    task: str, objective: Mapping[str, float], keys: jax.Array
) -> dict[float, float]:
    """Mean reward per window of each KV budget held for whole episodes."""
    env = jaxserve.make(task, overrides={"objective": objective})
    rewards = {}
    for budget in BUDGETS:
        action = jaxserve.make_action(batch_cap=96, kv_budget_fraction=budget)
        timesteps = rollout(env, StaticPolicy(action), keys).timesteps
        rewards[budget] = float(np.mean(timesteps.reward))
    return rewards


if __name__ == "__main__":
    main()
