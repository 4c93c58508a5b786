"""Results of searches that were not made: a setting, and anchors."""

from __future__ import annotations

import numpy as np

from jaxserve.agents.search import Contender, StaticSearch
from jaxserve.spaces import DEFAULT_ACTION
from jaxserve.tasks.anchors import Anchors
from jaxserve.tasks.spec import load_task


def static_search(setting: np.ndarray) -> StaticSearch:
    """A search that names a setting int32[6] and saw no other."""
    named = Contender(setting, 0.5, (0.0, 0.0, 0.0), slower=0.0, faster=0.0, equal=True)
    return StaticSearch(setting, (named,), episodes=1, doubt=0.1, resolved=True, exhausted=False)


def anchors_of(
    task: str, random: float, best_static: float, oracle: float, **knobs: float
) -> Anchors:
    """Anchors of version 1 of a task, whose best static setting has these knobs."""
    digest = load_task(task).digest
    action = DEFAULT_ACTION | knobs
    return Anchors(task, 1, digest, random, best_static, oracle, action, provenance={})
