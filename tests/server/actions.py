"""Actions for tests of the server's inside."""

from __future__ import annotations

import numpy as np

from jaxserve.spaces import ACTION_BOUNDS
from server.sessions.programs import Knobs


def random_knobs(dice: np.random.Generator) -> Knobs:
    """One action over the whole ranges."""
    return tuple(
        float(dice.integers(int(bound.low), int(bound.high) + 1))
        if bound.integer
        else dice.uniform(bound.low, bound.high)
        for bound in ACTION_BOUNDS.values()
    )
