"""Training on several devices: the environments are spread over all that JAX has.

Prints the devices, where the environments lie, and the mean reward of exploring policies at the
start and at the end. On a machine without accelerators every CPU core is a device.

    JAX_NUM_CPU_DEVICES=2 python examples/multi_device_training.py --updates 40
"""

from __future__ import annotations

import argparse

import jax
import numpy as np

import jaxserve
from jaxserve.learning.ppo import Learner
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.returns import task_discount
from jaxserve.runtime.jax_setup import use_all_cores


def main() -> None:
    """Trains PPO for some updates."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="bursty_workload", help="default %(default)s")
    parser.add_argument("--environments", type=int, default=128, help="default %(default)s")
    parser.add_argument("--updates", type=int, default=30, help="default %(default)s")
    arguments = parser.parse_args()

    use_all_cores()
    env = jaxserve.make(arguments.task)
    config = PPOConfig(
        environments=arguments.environments,
        updates=arguments.updates,
        learning_rate=2e-3,
        discount=task_discount(env),
    )
    learner = Learner.create(env, config)
    state = jax.jit(learner.init)(jax.random.key(0))
    update = jax.jit(learner.update)
    rewards = []
    for _ in range(arguments.updates):
        state, report = update(state)
        rewards.append(float(report.reward))
    pieces = state.observations.queue_depth.addressable_shards
    for piece in pieces:
        print(f"{piece.device}: {piece.data.size} environments")
    tenth = max(arguments.updates // 10, 1)
    print(f"{config.windows * arguments.updates:,} windows on {len(pieces)} devices")
    print(f"mean reward {np.mean(rewards[:tenth]):.3f} at first")
    print(f"mean reward {np.mean(rewards[-tenth:]):.3f} at last")


if __name__ == "__main__":
    main()
