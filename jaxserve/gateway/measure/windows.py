"""Exact aggregates of a window of time, for a controller.

Single measurements stay for a while in plain arrays; a window costs two bisections and a sort. The
definitions are those of the simulator's control window: a first token belongs to the window of its
arrival, a request to the window of its end.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.measure.records import Records, RequestRecord

_MAX_SAMPLES = 2_000_000


class Series:
    """Measurements in the order of their times; old ones are dropped."""

    def __init__(self, kept_s: float, most: int = _MAX_SAMPLES) -> None:
        """Args:
        kept_s: age up to which measurements are kept, s.
        most: most measurements that are kept.
        """
        self._kept_s = kept_s
        self._most = most
        self._times = array("d")
        self._values = array("d")
        self._classes = array("H")
        self._check_at = 4096
        self.dropped_to_s = -np.inf
        """time up to which measurements have been dropped."""

    def add(self, time_s: float, value: float, class_index: int) -> None:
        """Adds a measurement that is not older than the last one."""
        self._times.append(time_s)
        self._values.append(value)
        self._classes.append(class_index)
        if len(self._times) >= self._check_at:
            self._drop(time_s - self._kept_s)

    def between(self, since_s: float, until_s: float) -> tuple[np.ndarray, np.ndarray]:
        """Values and class indices of the measurements in ``(since_s, until_s]``, as copies."""
        start = bisect_right(self._times, since_s)
        stop = bisect_right(self._times, until_s, lo=start)
        return np.array(self._values[start:stop]), np.array(self._classes[start:stop], dtype=int)

    def counts(self, since_s: float, until_s: float, slices: int, class_index: int) -> list[int]:
        """Number of measurements of a class in each of equal parts of ``(since_s, until_s]``."""
        start = bisect_right(self._times, since_s)
        stop = bisect_right(self._times, until_s, lo=start)
        mine = np.array(self._classes[start:stop], dtype=int) == class_index
        times = np.array(self._times[start:stop])[mine]
        edges = np.linspace(since_s, until_s, slices + 1)
        # A part contains its end and not its start, as the window itself.
        place = np.searchsorted(edges, times, side="left") - 1
        return np.bincount(np.clip(place, 0, slices - 1), minlength=slices).tolist()

    def _drop(self, until_s: float) -> None:
        gone = max(bisect_right(self._times, until_s), len(self._times) - self._most)
        # The list may grow to twice its size before it is pruned: amortised O(1), bounded memory.
        if gone > 0:
            self.dropped_to_s = self._times[gone - 1]
            for column in (self._times, self._values, self._classes):
                del column[:gone]
        self._check_at = max(4096, 2 * len(self._times))


class WindowSeries:
    """Series of arrivals, first tokens and gaps between tokens, and their aggregates."""

    def __init__(self, classes: RequestClasses, kept_s: float) -> None:
        """Args: the classes of requests, and the age up to which measurements are kept, s."""
        self._classes = classes
        self._index = {name: place for place, name in enumerate(classes.names)}
        self.arrivals = Series(kept_s)
        """priorities of requests, at their arrival."""
        self.ttft_s = Series(kept_s)
        """times to first token, s, at the first token."""
        self.itl_s = Series(kept_s)
        """times between two events with output, s, at the later event."""

    def class_index(self, name: str) -> int:
        """Index of a class."""
        return self._index[name]

    def window(
        self, records: Records, since_s: float, until_s: float, slices: int = 0
    ) -> dict[str, Any]:
        """Aggregates of ``(since_s, until_s]``, monotonic clock, in total and by class.

        Args:
          records: records of requests that ended.
          since_s: start of the window.
          until_s: end of the window.
          slices: equal parts of the window for ``arrivals_by_slice`` of each class; 0 leaves out
            these and the list of ``ttft_s``.

        Returns:
          JSON-able aggregates; ``complete`` is false if measurements of the window were dropped.
        """
        ended, ended_known = records.ended_between(since_s, until_s)
        columns = {
            "arrivals": self.arrivals.between(since_s, until_s),
            "ttft": self.ttft_s.between(since_s, until_s),
            "itl": self.itl_s.between(since_s, until_s),
        }
        dropped_s = max(series.dropped_to_s for series in (self.arrivals, self.ttft_s, self.itl_s))
        seconds = until_s - since_s
        result = {
            "since_s": since_s,
            "until_s": until_s,
            "complete": bool(ended_known and dropped_s <= since_s),
            **_aggregates(columns, ended, seconds),
            "classes": {},
        }
        for name, place in self._index.items():
            mine = {key: (v[c == place], c[c == place]) for key, (v, c) in columns.items()}
            of_class = [record for record in ended if record.class_name == name]
            result["classes"][name] = _aggregates(mine, of_class, seconds)
            if slices:
                result["classes"][name] |= {
                    "arrivals_by_slice": self.arrivals.counts(since_s, until_s, slices, place),
                    "ttft_s": mine["ttft"][0].tolist(),
                }
        return result


def _aggregates(
    columns: dict[str, tuple[np.ndarray, np.ndarray]],
    ended: Sequence[RequestRecord],
    seconds: float,
) -> dict[str, Any]:
    priorities, ttft, itl = (columns[name][0] for name in ("arrivals", "ttft", "itl"))
    outcomes = Counter(record.outcome for record in ended)
    good = sum(record.good is True for record in ended)
    judged = sum(record.good is not None for record in ended)
    missed = outcomes["rejected"] + outcomes["failed"]
    values, counts = np.unique(priorities.astype(int), return_counts=True)
    return {
        "arrivals": len(priorities),
        "arrivals_by_priority": {str(v): int(n) for v, n in zip(values, counts, strict=True)},
        "first_tokens": len(ttft),
        "ttft_mean_s": _mean(ttft),
        "ttft_p50_s": quantile(ttft, 0.5),
        "ttft_p99_s": quantile(ttft, 0.99),
        "token_events": len(itl) + len(ttft),
        "itl_mean_s": _mean(itl),
        "itl_p50_s": quantile(itl, 0.5),
        "itl_p99_s": quantile(itl, 0.99),
        "tpot_mean_s": _mean(np.array([r.tpot_s for r in ended if r.tpot_s is not None])),
        "completed": outcomes["completed"],
        "rejected": outcomes["rejected"],
        "cancelled": outcomes["cancelled"],
        "failed": outcomes["failed"],
        "good": good,
        "judged": judged,
        "unjudged": outcomes["completed"] + outcomes["cancelled"] - judged,
        "goodput_rps": good / seconds if seconds > 0.0 else 0.0,
        "slo_attainment": good / (judged + missed) if judged + missed else None,
        "prompt_tokens": sum(record.prompt_tokens or 0 for record in ended),
        "output_tokens": sum(record.output_tokens or 0 for record in ended),
        "uncounted": sum(
            record.outcome == "completed" and record.output_tokens is None for record in ended
        ),
    }


def quantile(values: np.ndarray, share: float) -> float | None:
    """Smallest measurement that at least ``share`` of all do not exceed; None without any."""
    if not len(values):
        return None
    return float(np.quantile(values, share, method="inverted_cdf"))


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None
