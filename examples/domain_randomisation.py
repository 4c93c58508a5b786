"""Domain randomisation over hardware: one setting for several GPUs, each a little fast or slow.

Prints the best batch cap of every GPU, and the one that is best on average over all of them. All
GPUs, caps and episodes are played in one compiled program.

    python examples/domain_randomisation.py --hardware a100-sxm-80gb h100-sxm-80gb
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

import jaxserve
from jaxserve.seeds import episode_keys
from jaxserve.spaces import DEFAULT_ACTION

CAPS = (8, 16, 32, 64, 128, 256)


def main() -> None:
    """Plays every batch cap on every GPU."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="bursty_workload", help="default %(default)s")
    parser.add_argument(
        "--hardware",
        nargs="+",
        default=["a100-sxm-40gb", "l40s-48gb", "h100-sxm-80gb"],
        metavar="GPU",
        help="default %(default)s",
    )
    parser.add_argument(
        "--spread", type=float, default=0.2, help="of log GPU speed, default %(default)s"
    )
    parser.add_argument("--episodes", type=int, default=4, help="default %(default)s")
    parser.add_argument("--windows", type=int, default=100, help="default %(default)s")
    arguments = parser.parse_args()

    # The task's memory limit is that of its own GPU, so memory does not count here.
    overrides = {
        "randomisation": arguments.spread,
        "horizon": arguments.windows,
        "objective": {"memory_weight": 0.0},
    }
    envs = jaxserve.stack(
        [
            jaxserve.make(arguments.task, hardware=gpu, overrides=overrides)
            for gpu in arguments.hardware
        ]
    )
    actions = jaxserve.validate_action(
        {knob: np.full(len(CAPS), value) for knob, value in DEFAULT_ACTION.items()}
        | {"batch_cap": np.array(CAPS)}
    )
    keys = episode_keys(arguments.episodes, "train")

    def mean_reward(env, action, key):
        def window(state, _):
            state, timestep = env.step(state, action)
            return state, timestep.reward

        state, _ = env.reset(key)
        return jnp.mean(jax.lax.scan(window, state, length=arguments.windows)[1])

    over_episodes = jax.vmap(mean_reward, (None, None, 0))
    over_caps = jax.vmap(over_episodes, (None, 0, None))
    over_gpus = jax.jit(jax.vmap(over_caps, (0, None, None)))
    rewards = np.asarray(over_gpus(envs, actions, keys)).mean(-1)  # [GPU, cap]
    for gpu, row in zip([*arguments.hardware, "all"], [*rewards, rewards.mean(0)], strict=True):
        print(f"{gpu:16} best batch cap {CAPS[row.argmax()]:4}  mean reward {row.max():6.3f}")


if __name__ == "__main__":
    main()
