"""How far ahead a learner looks in a task."""

from __future__ import annotations

import numpy as np

from jaxserve.agents.regimes import regimes_alike
from jaxserve.env import ServeEnv
from jaxserve.spaces import KNOBS, RESTART_KNOBS

QUEUE_DISCOUNT = 0.97
"""Per window: half a minute, which is as long as what a knob does now is felt in a queue."""


def task_discount(env: ServeEnv) -> float:
    """Discount per window with which a change that costs a restart is worth it if it pays off.

    The price of a new tier or split is paid within seconds, and it pays back until the traffic
    changes: a learner has to look ahead for the mean stay in a regime, at most an episode. Tasks
    without such knobs are learnt best with ``QUEUE_DISCOUNT``, the least of all.
    """
    restarting = [KNOBS.index(knob) for knob in RESTART_KNOBS]
    if not np.asarray(env.knob_active)[restarting].any():
        return QUEUE_DISCOUNT
    ahead = float(env.horizon)
    if not regimes_alike(env):
        dwell_s = np.asarray(env.workload.regimes.dwell_s)
        ahead = min(ahead, float(dwell_s.mean()) / env.window_s)
    return max(1.0 - 1.0 / ahead, QUEUE_DISCOUNT)
