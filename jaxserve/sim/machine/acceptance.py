"""Expected tokens per verify step, measured per dataset and drafting method.

The means come from replaying measured acceptance lengths, not from one acceptance rate raised to
powers: conditional acceptance rises with the position, because drafts that survive are easy ones.
"""

import numpy as np

from jaxserve import checks
from jaxserve.datafiles import load_json
from jaxserve.fields import MAX_DEPTH


def profile_names() -> tuple[str, ...]:
    """Names that ``tokens_per_step`` accepts, as dataset/method."""
    return tuple(sorted(load_json("acceptance.json")["profiles"]))


def tokens_per_step(profile: str) -> np.ndarray:
    """Mean tokens that one step emits, float64[9] for depths 0 to 8; 1 at depth 0.

    Raises:
      InputError: unknown profile.
    """
    profiles = load_json("acceptance.json")["profiles"]
    found = profiles[checks.one_of("profile", profile, profiles)]
    measured = {int(depth): mean for depth, mean in found["tokens_per_step"].items()}
    means = [1.0] + [measured[depth] for depth in range(1, 7)]
    means += [_between(means[5], means[6], measured[MAX_DEPTH]), measured[MAX_DEPTH]]
    return np.array(means)


def _between(at_5: float, at_6: float, at_8: float) -> float:
    """Mean at depth 7: the gains of depths 6, 7 and 8 form a geometric series."""
    gain, two_gains = at_6 - at_5, at_8 - at_6
    ratio = (np.sqrt(1 + 4 * two_gains / gain) - 1) / 2
    return float(at_6 + gain * ratio)
