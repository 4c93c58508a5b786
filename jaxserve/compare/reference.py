"""Policies in the reference simulator, request by request, on all cores.

The reference simulator faces the same requests under the same key, and its rewards mean the same,
so that its scores can be held against those of the fast one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import StageProgress
from jaxserve.agents.reference_rollout import reference_rollout, table_timer
from jaxserve.registry import make
from jaxserve.runtime.process_pool import map_in_processes
from jaxserve.seeds import episode_key
from jaxserve.tasks.spec import TaskSpec


def reference_objectives(
    spec: TaskSpec,
    policies: Sequence[Policy],
    episodes: int,
    progress: StageProgress | None = None,
) -> NDArray[np.float64]:
    """float64[P, E]: mean reward per window of each policy on the first test episodes.

    Args:
      progress: called with episodes done and episodes in all.
    """
    jobs = [(spec, policy, seed) for policy in policies for seed in range(episodes)]
    found = map_in_processes(_objective, jobs, progress=progress)
    return np.reshape(found, (len(policies), episodes))


def _objective(spec: TaskSpec, policy: Policy, seed: int) -> float:
    env = make(spec)
    found = reference_rollout(env, policy, episode_key(seed, "test"), table_timer(spec))
    return float(np.mean(found.parts.total))
