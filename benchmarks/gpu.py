"""``python -m benchmarks.gpu``: speed of the environment and of PPO on GPUs against batch size."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax
import numpy as np

import jaxserve
from benchmarks.environment import batched_windows_per_s
from benchmarks.learner import ppo_windows_per_s, seconds_past_static
from benchmarks.page import page_parser, publish
from jaxserve.agents.open_loop import RandomPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.errors import InputError
from jaxserve.seeds import episode_keys
from jaxserve.studies.compare.trained import LEARNING_RATE, STEPS

TASK = "adversarial_multitenant"
EPISODES = 256
BATCHES = tuple(4**power for power in range(5, 9))


def main() -> int:
    """Runs the benchmark once and prints one table; exit code 2 without a GPU."""
    return publish(gpu_page, page_parser("benchmarks.gpu", __doc__).parse_args().markdown)


def gpu_page() -> str:
    """Measures on all GPUs that JAX sees; Markdown.

    Raises:
      InputError: JAX sees no GPU.
    """
    if jax.default_backend() != "gpu":
        raise InputError(
            f"JAX runs on {jax.default_backend()} here; this needs a CUDA GPU and "
            "pip install 'jax[cuda13]'"
        )
    return "\n".join([speeds_page(BATCHES), learning_sentence(TASK), agreement_sentence(TASK)])


def speeds_page(batches: Sequence[int]) -> str:
    """Windows per second of all devices together, a row for each number of environments."""
    devices = jax.devices()
    lines = [
        "# Benchmarks on a GPU",
        "",
        "Printed by `make bench-gpu`.",
        "",
        f"Measured with jax {jax.__version__} on {len(devices)} x {devices[0].device_kind}: "
        f"windows per second of {TASK}, and seconds to compile.",
        "",
        "| environments | environment | compile | PPO end to end | compile |",
        "|--:|--:|--:|--:|--:|",
    ]
    for batch in batches:
        playing, play_compile_s = batched_windows_per_s(TASK, batch, len(devices))
        learning, learn_compile_s = ppo_windows_per_s(TASK, batch)
        lines.append(
            f"| {batch:,} | {playing:,.0f} | {play_compile_s:.1f} s "
            f"| {learning:,.0f} | {learn_compile_s:.1f} s |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def learning_sentence(task: str) -> str:
    """How soon PPO passes the best static setting, with the settings of ``make bench``."""
    seconds, windows = seconds_past_static(task, STEPS, LEARNING_RATE)
    return (
        f"PPO passes the best static setting of {task} after {seconds:.1f} s, compilation "
        f"included ({windows:,} windows).\n"
    )


def agreement_sentence(task: str) -> str:
    """How far rewards of a GPU are from those of the processor beside it, in the same episodes."""
    rewards = []
    for backend in ("cpu", jax.default_backend()):
        with jax.default_device(jax.devices(backend)[0]):
            played = rollout(jaxserve.make(task), RandomPolicy(), episode_keys(EPISODES, "train"))
            rewards.append(np.asarray(played.timesteps.reward).mean(axis=1))
    off = np.abs(rewards[1] - rewards[0]) / np.abs(rewards[0])
    return (
        f"Mean rewards of {EPISODES} episodes of {task} under random settings are within "
        f"{off.max():.1e} of the processor's (relative; median {np.median(off):.1e}).\n"
    )


if __name__ == "__main__":
    sys.exit(main())
