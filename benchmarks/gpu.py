"""``python -m benchmarks.gpu``: speed of the environment and of PPO on GPUs against batch size."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import jax

from benchmarks.environment import batched_windows_per_s
from benchmarks.learner import ppo_windows_per_s
from benchmarks.page import page_parser, publish
from jaxserve.errors import InputError

TASK = "adversarial_multitenant"
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
    return speeds_page(BATCHES)


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


if __name__ == "__main__":
    sys.exit(main())
