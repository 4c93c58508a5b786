"""``python -m benchmarks``: speed of the environment and of PPO on the devices that JAX has."""

from __future__ import annotations

import os
import platform
import sys

import jax

from benchmarks.environment import (
    batched_windows_per_s,
    gymnax_steps_per_s,
    reference_requests_per_s,
    scipy_steps_per_s,
    single_step_s,
    state_bytes,
)
from benchmarks.learner import ppo_windows_per_s, seconds_past_static
from benchmarks.page import page_parser, publish
from jaxserve.runtime.jax_setup import use_all_cores
from jaxserve.studies.compare.trained import LEARNING_RATE, STEPS

LEARNERS = 1024
SEEDS = 8
HARD = "adversarial_multitenant"
HOUR_REQUESTS = 23_608
"""Requests of an hour that DynoSim plays on 8 workers in 2.41 s by its own account."""
BATCHES = (256, 1024, 4096, 16384)


def main() -> int:
    """Runs every benchmark once and prints one table; exit code 2 after bad input."""
    return publish(speed_page, page_parser("benchmarks", __doc__).parse_args().markdown)


def speed_page() -> str:
    """Measures everything and prints each speed as it is known; Markdown."""
    use_all_cores()
    device = jax.devices()[0]
    lines = [
        "# Benchmarks",
        "",
        "Printed by `make bench`.",
        "",
        f"Measured with jax {jax.__version__} on {device.device_kind} ({device.platform}), "
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}.",
        "",
        "| benchmark | figure |",
        "|---|---|",
    ]
    speeds = {}
    for batch, devices in ((4096, 1), *((batch, jax.device_count()) for batch in BATCHES)):
        speeds[batch], compile_s = batched_windows_per_s(HARD, batch, devices)
        where = "one device" if devices == 1 else f"spread over {devices} devices"
        lines.append(
            f"| hard task, batch {batch:,}, {where} | {speeds[batch]:,.0f} windows/s "
            f"({1e9 / speeds[batch]:,.0f} ns a window, compile {compile_s:.1f} s) |"
        )
        print(lines[-1], flush=True)
    learning, compile_s = ppo_windows_per_s(HARD, LEARNERS)
    lines.append(
        f"| hard task, PPO end to end, {LEARNERS:,} environments | {learning:,.0f} windows/s "
        f"(compile {compile_s:.1f} s) |"
    )
    print(lines[-1], flush=True)
    together, _ = ppo_windows_per_s(HARD, LEARNERS, SEEDS)
    lines.append(
        f"| the same with {SEEDS} seeds side by side | {together:,.0f} windows/s "
        f"({SEEDS * learning / together:.1f} times as long as one seed) |"
    )
    print(lines[-1], flush=True)
    for task in ("bursty_workload", HARD):
        seconds, windows = seconds_past_static(task, STEPS, LEARNING_RATE)
        lines.append(
            f"| {task}: PPO past the best static setting | {seconds:.1f} s, compilation included "
            f"({windows:,} windows) |"
        )
        print(lines[-1], flush=True)
    lines.append(f"| one un-batched step from Python | {1e3 * single_step_s(HARD):.3f} ms |")
    lines.append(f"| state of one environment | {state_bytes(HARD):,} bytes |")
    scipy_rate = scipy_steps_per_s("llama-3.1-8b__a100-sxm-40gb")
    lines.append(
        f"| five SciPy look-ups, no dynamics | {scipy_rate:,.0f} steps/s "
        f"(the hard task at batch 4,096 is {speeds[4096] / scipy_rate:,.0f} times faster) |"
    )
    rate = reference_requests_per_s(HOUR_REQUESTS, 3600.0)
    lines.append(
        f"| reference simulator, an hour of {HOUR_REQUESTS:,} requests on 8 GPUs, one core | "
        f"{HOUR_REQUESTS / rate:.3f} s ({rate:,.0f} requests/s) |"
    )
    ceiling = gymnax_steps_per_s(4096)
    if ceiling:
        lines.append(
            f"| gymnax CartPole, batch 4,096 | {ceiling:,.0f} steps/s "
            f"({ceiling / speeds[4096]:,.1f} times the hard task) |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
