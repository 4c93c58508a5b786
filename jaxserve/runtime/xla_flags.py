"""Flags of XLA's CPU compiler. They are of jaxlib 0.10: XLA ends the process at a flag it does not
know, so later releases are left alone."""

from __future__ import annotations

import os

from jaxlib import version as jaxlib_version

_SMALL_LOOP_BYTES = 2**16
"""Loops over so little are compiled whole: the ticks of one environment keep about half of it,
those of a few together more."""


def avoid_hanging_reductions() -> None:
    """Switches a defect off: reductions in YNNPACK hang on a busy machine.

    On two cores that other processes used as well, updates of the learner that this release had
    compiled to such reductions stopped and did not go on; without them that has not been seen.
    """
    set_flag("--xla_cpu_experimental_ynn_fusion_type", "")


def compile_small_loops_whole() -> None:
    """A loop over few bytes becomes one function instead of a call for every operation.

    By itself XLA does so up to one kilobyte. A window of one environment takes two thirds of the
    time, one of many as long as before. Everywhere, since the last bits of the result may differ:
    a server's rewards are to be those of ``jax.jit(env.step)`` in any other process.
    """
    set_flag(
        "--xla_backend_extra_options",
        f"xla_cpu_small_while_loop_byte_threshold={_SMALL_LOOP_BYTES}",
    )


def set_flag(flag: str, value: str) -> None:
    """Has an effect before the first computation only, which is when XLA reads its flags."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib_version.__version__.startswith("0.10.") and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={value}".strip()
