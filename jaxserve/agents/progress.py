"""Progress of searches, evaluations and comparisons."""

from __future__ import annotations

import functools
from collections.abc import Callable

StageProgress = Callable[[int, int], None]
"""Called with steps done and steps in all."""

Progress = Callable[[str, int, int], None]
"""Called with a stage name, steps done and steps in all."""


def stage_progress(stage: str, progress: Progress | None) -> StageProgress | None:
    """``progress`` for one stage."""
    return None if progress is None else functools.partial(progress, stage)
