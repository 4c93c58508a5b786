"""Extent of a load test, and a warning where traffic leaves it: times there are extrapolated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from jaxserve.checks import JsonObject
from jaxserve.errors import InputWarning

TAIL = 0.05
"""Share of the requests at either end of a distribution of lengths that may lie beyond."""

_MAX = 1e9
_LABELS = {
    "in_flight": "requests in flight",
    "prompts": "tokens in a prompt",
    "sequences": "tokens in a sequence",
}


@dataclass(frozen=True)
class Extent:
    """The smallest and the largest of what was measured, or of what is asked for."""

    in_flight: tuple[float, float]
    """requests in flight."""
    prompts: tuple[float, float]
    """tokens of a prompt."""
    sequences: tuple[float, float]
    """tokens of a prompt and its output together."""

    @classmethod
    def of_rows(
        cls, concurrency: ArrayLike, prompt_tokens: ArrayLike, output_tokens: ArrayLike
    ) -> Extent:
        """The extent of the points of a load test."""
        sequences = np.add(prompt_tokens, output_tokens)
        return cls(*(_ends(values) for values in (concurrency, prompt_tokens, sequences)))

    @classmethod
    def of_requests(
        cls, most_in_flight: float, prompt_tokens: ArrayLike, output_tokens: ArrayLike
    ) -> Extent:
        """The extent of requests, without the ``TAIL`` of the shortest and that of the longest."""
        prompt = np.asarray(prompt_tokens, np.float64)
        lengths = (prompt, prompt + np.asarray(output_tokens, np.float64))
        prompts, sequences = (_ends(np.quantile(each, (TAIL, 1 - TAIL))) for each in lengths)
        return cls((1.0, float(most_in_flight)), prompts, sequences)

    @classmethod
    def around(cls, several: Sequence[Extent]) -> Extent:
        """The extent from the smallest to the largest of several."""
        return cls(
            *(_ends([getattr(each, field.name) for each in several]) for field in fields(cls))
        )

    @classmethod
    def from_dict(cls, item: JsonObject) -> Extent:
        """Parses an extent from the fields of a JSON object.

        Raises:
          InputError: a field is missing, or not two numbers of which the second is as large.
        """
        return cls(**{field.name: item.rising_pair(field.name, 0, _MAX) for field in fields(cls)})

    def beyond(self, measured: Extent) -> str | None:
        """The part of this extent that was not measured, in one sentence; None if all was."""
        found = []
        for name, label in _LABELS.items():
            (least, most), (low, high) = getattr(self, name), getattr(measured, name)
            # Every load begins with one request, and that says little.
            if most > high or (least < low and name != "in_flight"):
                found.append(f"{least:,.0f} to {most:,.0f} {label} ({low:,.0f} to {high:,.0f})")
        if not found:
            return None
        return (
            f"there are {', '.join(found)} beyond what the table's load test measured (in "
            "brackets): its times are extrapolated there"
        )


def warn_beyond(measured: Extent | None, asked: Extent) -> None:
    """An InputWarning where ``asked`` leaves what a table was measured with; None is not known."""
    said = None if measured is None else asked.beyond(measured)
    if said is not None:
        warnings.warn(said, InputWarning, stacklevel=3)


def _ends(values: ArrayLike) -> tuple[float, float]:
    return float(np.min(values)), float(np.max(values))
