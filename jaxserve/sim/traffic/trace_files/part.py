"""Parts of a recording: a span of time, and a random share of the requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError

_DURATION = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)\s*(s|min|m|h|d)")
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION_RULE = "a duration such as 90s, 30min, 2h or 1d"


@dataclass(frozen=True)
class TracePart:
    """A stated part of a file of requests; the whole file where nothing is stated."""

    start: str | None = None
    """its begin (``--from``): a duration after the first row, such as ``2h``, or a time as the file
    writes it."""
    length: str | None = None
    """its duration (``--for``), such as ``30min``."""
    sample: float | None = None
    """share of its requests (``--sample``), each drawn by itself. Rates are that share of the
    recorded ones, and bursts are weaker: the arrivals are those of a smaller crowd."""

    def __post_init__(self) -> None:
        if self.length is not None and not _duration_s(self.length):
            checks.refuse("--for", self.length, f"{_DURATION_RULE}, and not 0")
        if self.sample is not None and not 0.0 < checks.number("--sample", self.sample) < 1.0:
            checks.refuse("--sample", self.sample, "a share between 0 and 1, such as 0.1")

    @property
    def stated(self) -> dict[str, Any]:
        """The options that are given, as the command line names them."""
        options = {"--from": self.start, "--for": self.length, "--sample": self.sample}
        return {option: value for option, value in options.items() if value is not None}

    def span_s(
        self, name: str, first: float, second: float, calendar: pa.TimestampType | None = None
    ) -> tuple[float, float]:
        """Begin and end of the part, seconds after the first row.

        Args:
          name: of the file.
          first: time of its first row.
          second: units of its times in a second.
          calendar: type of calendar times, which then are nanoseconds.

        Raises:
          InputError: the begin is neither a duration nor a time of this file.
        """
        start_s = 0.0
        if self.start is not None:
            after_s = _duration_s(self.start)
            if after_s is None:
                start_s = (_time_of_file(name, self.start, calendar) - first) / second
            else:
                start_s = after_s
        length_s = None if self.length is None else _duration_s(self.length)
        return start_s, np.inf if length_s is None else start_s + length_s


WHOLE = TracePart()
"""The part that is the whole file."""


class Draw:
    """Draws the rows of ``TracePart.sample``: the same rows of a file every time."""

    def __init__(self, part: TracePart) -> None:
        """A draw that begins with the first row of a file."""
        self._share = part.sample
        self._rng = np.random.default_rng(0)

    def next(self, rows: int) -> NDArray[np.bool_]:
        """bool[rows], which of the next rows are drawn. A smaller share draws some of the rows that
        a larger one draws."""
        if self._share is None:
            return np.ones(rows, np.bool_)
        return self._rng.random(rows) < self._share


@dataclass(frozen=True)
class WholeFile:
    """File of which a part was taken."""

    part: TracePart
    """the part."""
    rows: int
    """rows of the file."""
    requests: int
    """rows that are requests with tokens."""
    duration_s: float
    """seconds from the first of these to the last."""
    left_out: Mapping[str, int]
    """rows that are not in the trace, by the option that leaves them out."""


def _duration_s(text: str) -> float | None:
    """Seconds of a duration; None where a text is none."""
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else float(found[1]) * _SECONDS[found[2]]


def _time_of_file(name: str, text: str, calendar: pa.TimestampType | None) -> float:
    try:
        if calendar is None:
            return checks.number("--from", float(text))
        return int(pa.scalar(text.strip()).cast(calendar).cast(pa.int64()).as_py())
    except (ValueError, pa.ArrowInvalid):
        pass
    times = "a number in the unit of the file's times"
    if calendar is not None:
        offset = "+00:00" if calendar.tz else ""
        times = f"a time like 2024-05-12 08:00:00{offset}"
    raise InputError(
        f"--from is {text!r}; of {name} it must be {_DURATION_RULE} after its first row, or {times}"
    )
