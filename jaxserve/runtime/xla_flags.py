"""Flags of XLA's CPU compiler. They are of jaxlib 0.10: XLA ends the process at a flag it does not
know, so later releases are left alone."""

from __future__ import annotations

import os

from jaxlib import version as jaxlib_version


def avoid_hanging_reductions() -> None:
    """Switches a defect off: reductions in YNNPACK hang on a busy machine.

    On two cores that other processes used as well, updates of the learner that this release had
    compiled to such reductions stopped and did not go on; without them that has not been seen.
    """
    set_flag("--xla_cpu_experimental_ynn_fusion_type", "")


def set_flag(flag: str, value: str) -> None:
    """Has an effect before the first computation only, which is when XLA reads its flags."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib_version.__version__.startswith("0.10.") and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={value}".strip()
