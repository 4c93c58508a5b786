"""Expected tokens per verify step, measured per dataset and drafting method.

The means come from replaying measured acceptance lengths, not from one acceptance rate raised to
powers: conditional acceptance rises with the position, because drafts that survive are easy ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from jaxserve import checks
from jaxserve.datafiles import load_json
from jaxserve.fields import MAX_DEPTH
from jaxserve.sim.machine.cost_model import CostModel

_TIMED = "eagle"  # the method whose times the files of the GPUs have


@dataclass(frozen=True)
class Drafts:
    """Speculation of an engine whose depth follows the sequences that it runs."""

    profile: str
    """acceptance profile of the requests."""
    depths: tuple[int, ...]
    """draft tokens of each sequence where 1, 2, ... sequences run, the last for more."""

    @property
    def deepest(self) -> int:
        """Largest depth."""
        return max(self.depths)

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """(fewest, most, depth) of consecutive numbers of sequences with one depth, the form of
        vLLM's ``num_speculative_tokens_per_batch_size``."""
        found, first = [], 1
        for depth, group in itertools.groupby(self.depths):
            last = first + len(list(group)) - 1
            found.append((first, last, depth))
            first = last + 1
        return found

    @classmethod
    def fastest(
        cls, profile: str, cost: CostModel, context_tokens: float, tier: int, sequences: int
    ) -> Drafts:
        """The depths with the least time per token of an iteration that only decodes; prefill adds
        the same to a token at every depth, as its prompts come by the tokens made.

        Args:
          profile: acceptance profile.
          cost: iteration times; no depth is beyond the deepest draft that was measured.
          context_tokens: mean KV tokens of a sequence.
          tier: quantisation tier.
          sequences: most sequences that run.
        """
        depths = np.arange(min(int(cost.draft_flat_depth), MAX_DEPTH) + 1)
        per_step = tokens_per_step(profile)[depths]
        running = np.arange(1, sequences + 1)
        step_s = cost.decode_s(running[:, None], context_tokens, depths, tier)
        return cls(profile, tuple((step_s / per_step).argmin(axis=1).tolist()))


def timed_profiles() -> tuple[str, ...]:
    """Profiles of the drafting method whose times are known: those of EAGLE."""
    return tuple(name for name in profile_names() if name.endswith(f"/{_TIMED}"))


def profile_error(profile: str) -> float:
    """Mean absolute relative difference of tokens per step at depths 1 to 8 to the profiles of the
    same method on other data sets: how far acceptance on a user's texts may be off."""
    _, method = profile.split("/")
    others = [
        tokens_per_step(name)
        for name in profile_names()
        if name != profile and name.endswith(f"/{method}")
    ]
    return float(np.abs(np.array(others) / tokens_per_step(profile) - 1.0)[:, 1:].mean())


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
