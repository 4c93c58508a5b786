"""Reward weights of your own: what the best batch cap is when late answers count as well.

Prints, for the task's own objective and for one that takes less or nothing away for missed SLOs,
the mean reward of every batch cap on the same episodes, and the best one.

    python examples/custom_reward.py --slo-weight 0.2
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

CAPS = (16, 32, 64, 128, 256)


def main() -> None:
    """Plays every batch cap under both objectives."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="adversarial_multitenant", help="default %(default)s")
    parser.add_argument("--slo-weight", type=float, default=0.0, help="default %(default)s")
    parser.add_argument("--episodes", type=int, default=4, help="default %(default)s")
    arguments = parser.parse_args()

    keys = episode_keys(arguments.episodes, "train")
    lenient = {"slo_weight": arguments.slo_weight}
    for name, objective in (("the task's own objective", {}), ("late answers count", lenient)):
        rewards = cap_rewards(arguments.task, objective, keys)
        print(name)
        for cap, reward in rewards.items():
            print(f"  batch cap {cap:3d}  mean reward {reward:6.3f}")
        print(f"  best: {max(rewards, key=rewards.__getitem__)}")


def cap_rewards(task: str, objective: Mapping[str, float], keys: jax.Array) -> dict[int, float]:
    """Mean reward per window of each batch cap held for whole episodes."""
    env = jaxserve.make(task, overrides={"objective": objective})
    rewards = {}
    for cap in CAPS:
        timesteps = rollout(env, StaticPolicy(jaxserve.make_action(batch_cap=cap)), keys).timesteps
        rewards[cap] = float(np.mean(timesteps.reward))
    return rewards


if __name__ == "__main__":
    main()
