"""A defect of jaxlib 0.10 that is switched off: reductions in YNNPACK hang on a busy machine.

On two cores that other processes used as well, updates of the learner that this release had
compiled to such reductions stopped and did not go on; without them that has not been seen. Later
releases are left alone: XLA ends the process at a flag it does not know.
"""

from __future__ import annotations

import os

from jaxlib import version as jaxlib_version

_FLAG = "--xla_cpu_experimental_ynn_fusion_type"


def avoid_hanging_reductions() -> None:
    """Has an effect before the first computation only, which is when XLA reads its flags."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib_version.__version__.startswith("0.10.") and _FLAG not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}=".strip()
