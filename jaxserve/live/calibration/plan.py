"""The grid of loads of a calibration."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import MAX_CONTEXT_TOKENS

MAX_ERROR = 0.15
"""Largest mean relative error of a fit that is accepted without being asked for."""
_RANGES = {
    "concurrency": (1, 4096),
    "prompt_tokens": (8, MAX_CONTEXT_TOKENS),
    "output_tokens": (8, 8192),
}


@dataclass(frozen=True)
class CalibrationPlan:
    """A grid of loads, and the time to measure it."""

    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Requests in flight; at most as many as the engine runs at a time."""
    prompt_tokens: tuple[int, ...] = (64, 256, 768)
    """Lengths of prompts."""
    output_tokens: tuple[int, ...] = (24, 96)
    """Mean lengths of outputs."""
    minutes: float = 6.0
    """Time for all measurements."""
    accept: float = MAX_ERROR
    """Largest mean error of a fit from which a table is written."""

    def check(self) -> None:
        """Raises InputError if a number is out of range or appears twice."""
        for name, (low, high) in _RANGES.items():
            option, values = f"--{name.replace('_', '-')}", getattr(self, name)
            if not values or len(set(values)) < len(values):
                checks.refuse(option, list(values), "one number or more, each of them once")
            for value in values:
                checks.whole(option, value, low, high)
        checks.number("--minutes", self.minutes, 0.01, 600)
        checks.number("--accept", self.accept, 0.01, 1.0)

    def check_fits(self, longest: int | None) -> None:
        """Raises InputError if the longest request exceeds the engine's longest sequence.

        Args:
          longest: tokens of the longest sequence; None if unknown.
        """
        needed = max(self.prompt_tokens) + longest_output(max(self.output_tokens))
        if longest is not None and needed > longest:
            raise InputError(
                f"--prompt-tokens and --output-tokens need sequences of {needed} tokens; "
                f"the engine takes {longest}"
            )

    @property
    def points(self) -> list[tuple[int, int, int]]:
        """Concurrency, prompt and mean output of every point, in order of concurrency."""
        return list(itertools.product(self.concurrency, self.prompt_tokens, self.output_tokens))


def longest_output(mean: int) -> int:
    """Longest output of a mean length: outputs vary by half around it."""
    return mean + mean // 2
