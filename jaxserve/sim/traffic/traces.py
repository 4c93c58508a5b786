"""Recorded request traces: when requests came, and how many tokens each had.

Requests of one time are spread over the tick where a file's clock stands still for half a second or
longer. Times of the published Mooncake trace are multiples of three seconds, for example. Its
requests did not come all at once: a queue of ten prompts at every tick is the clock's and not the
traffic's. Nor did they come in step: their times are drawn uniformly, as those of a Poisson process
are whose count is known. Equal distances would all but remove the queues (docs/fidelity.md has
how far either is off).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import MAX_CONTEXT_TOKENS
from jaxserve.sim.traffic.prompt_blocks import PromptBlocks
from jaxserve.sim.traffic.request_kinds import check_kinds, number_kinds
from jaxserve.sim.traffic.trace_files.part import WHOLE, TracePart, WholeFile
from jaxserve.sim.traffic.trace_files.reading import read_rows
from jaxserve.sim.traffic.trace_files.text import Advance

COARSE_TICK_S = 0.5
"""Shortest tick of a clock over which requests of one time are spread, seconds."""
_GLANCE = 1_000_000
"""Times at the beginning of a trace that mostly show by themselves that its clock is fine."""
_MIN_TICKS = 10
_TICK_TOLERANCE = 0.01
_SPREAD_SEED = 0
_SPANS = ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True, eq=False)
class Trace:
    """n recorded requests in order of arrival."""

    arrival_s: NDArray[np.float64]
    """float64[n], seconds since the first request, non-decreasing."""
    prompt_tokens: NDArray[np.int32]
    """int32[n], at least 1."""
    output_tokens: NDArray[np.int32]
    """int32[n], at least 1."""
    time_unit: str | None = None
    """unit in which the file's times were read; None for calendar times, and without a file."""
    skipped: int = 0
    """requests that the file records as failed (no tokens) and that were left out."""
    whole: WholeFile | None = None
    """file of which the trace is a part; None where it is all of a file."""
    blocks: PromptBlocks | None = None
    """blocks in which prompts begin alike; None where the file lacks them."""
    tick_s: float | None = None
    """tick of a clock that was too coarse, over which requests were spread."""
    kinds: tuple[str, ...] = ()
    """names of the kinds of requests, sorted; empty where the file does not tell."""
    kind: NDArray[np.int32] | None = None
    """int32[n], index of each request's kind in ``kinds``; None where the file does not tell."""

    def __post_init__(self) -> None:
        lengths = {len(self.arrival_s), len(self.prompt_tokens), len(self.output_tokens)}
        if len(lengths) > 1 or len(self.arrival_s) == 0:
            raise InputError("a trace needs at least one request, and all columns of one length")
        falls = self.arrival_s[1:] < self.arrival_s[:-1]
        if not np.isfinite(self.arrival_s).all() or falls.any():
            raise InputError("arrival_s must be finite and must not decrease")
        checks.number("arrival_s[0]", self.arrival_s[0], 0, 0)
        if min(self.prompt_tokens.min(), self.output_tokens.min()) < 1:
            raise InputError("prompt_tokens and output_tokens must be at least 1")
        if self.blocks is not None and len(self.blocks.starts) != len(self) + 1:
            raise InputError("blocks must be those of as many prompts as the trace has")
        check_kinds(self.kinds, self.kind, len(self))

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """Seconds from the first to the last request."""
        return float(self.arrival_s[-1] - self.arrival_s[0])

    @property
    def repeated_share(self) -> float | None:
        """Share of the prompt tokens in blocks that the trace had before, which a prefix cache of
        any size would spare; None where the file does not tell blocks apart."""
        return None if self.blocks is None else self.blocks.repeated_share(self.prompt_tokens)

    @property
    def total_tokens(self) -> NDArray[np.int64]:
        """int64[n], tokens of each request, prompt and output together."""
        return self.prompt_tokens.astype(np.int64) + self.output_tokens

    def counts(self, window_s: float, windows: int) -> NDArray[np.int64]:
        """int64[windows], requests that arrive in each window of ``window_s``; the last window
        lasts until the end."""
        return np.diff(self._edges(window_s, windows))

    def sums(self, values: NDArray[Any], window_s: float, windows: int) -> NDArray[np.float64]:
        """float64[windows], sums of ``values``, [n], over the requests of ``counts``."""
        edges = self._edges(window_s, windows)
        some = np.diff(edges) > 0
        found = np.zeros(windows)
        # A window without requests begins where the next one does.
        found[some] = np.add.reduceat(values, edges[:-1][some], dtype=np.float64)
        return found

    def _edges(self, window_s: float, windows: int) -> NDArray[np.int64]:
        """int64[windows + 1], the first request of each window, and the number of requests."""
        first = np.searchsorted(self.arrival_s, np.arange(windows) * window_s)
        return np.append(first, len(self))

    @property
    def beyond_table(self) -> tuple[int, int]:
        """Requests longer than the longest context of a latency table, and their tokens beyond."""
        over = self.total_tokens - MAX_CONTEXT_TOKENS
        return int((over > 0).sum()), int(over[over > 0].sum())

    def within_table(self) -> Trace:
        """The trace with requests beyond the table shortened: their prompts, and outputs that are
        too long by themselves."""
        if not self.beyond_table[0]:
            return self
        output = np.minimum(self.output_tokens, MAX_CONTEXT_TOKENS - 1)
        prompt = np.minimum(self.prompt_tokens, MAX_CONTEXT_TOKENS - output)
        return dataclasses.replace(self, prompt_tokens=prompt, output_tokens=output)

    def chosen(self, requests: NDArray[np.bool_] | slice) -> Trace:
        """The trace of some requests, the first of them at 0.

        Args:
          requests: bool[n], true for these requests, or their slice.
        """
        arrival_s = self.arrival_s[requests]
        kinds, kind = self.kinds, self.kind
        if kind is not None:
            kinds, kind = number_kinds(kinds, kind[requests])
        return dataclasses.replace(
            self,
            arrival_s=arrival_s - arrival_s[:1],
            prompt_tokens=self.prompt_tokens[requests],
            output_tokens=self.output_tokens[requests],
            blocks=None if self.blocks is None else self.blocks.chosen(requests),
            kinds=kinds,
            kind=kind,
        )

    @property
    def summary(self) -> str:
        """Number, span, rate and lengths of the requests, what is left out, and the part that they
        are of which file, in one line for the user."""
        unit = f" (times in {self.time_unit})" if self.time_unit else ""
        kinds = f", {len(self.kinds)} kinds" if self.kinds else ""
        failed = f"; {self.skipped:,} that failed are left out" if self.skipped else ""
        return (
            f"{_load(len(self), self.duration_s)}{unit}, prompts of "
            f"{self.prompt_tokens.mean():,.0f} and outputs of {self.output_tokens.mean():,.0f} "
            f"tokens on average{kinds}{failed}{self._whole_text}"
        )

    @property
    def _whole_text(self) -> str:
        whole = self.whole
        if whole is None:
            return ""
        options = " ".join(f"{option} {value}" for option, value in whole.part.stated.items())
        text = f"; {options} of {_load(whole.requests, whole.duration_s)}"
        share = whole.part.sample
        return (
            f"{text}; the sample lowers the rate to {share:.3g} of the recorded one"
            if share
            else text
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Content of ``summary`` for JSON: rows that were read and left out, by the reason."""
        whole, duration_s = self.whole, self.duration_s
        left_out = {"failed": self.skipped} | dict(whole.left_out if whole else {})
        return {
            "requests": len(self),
            "duration_s": duration_s,
            "rate_rps": len(self) / duration_s if duration_s else None,
            "mean_prompt_tokens": float(self.prompt_tokens.mean()),
            "mean_output_tokens": float(self.output_tokens.mean()),
            "kinds": list(self.kinds),
            "time_unit": self.time_unit,
            "tick_s": self.tick_s,
            "rows_read": len(self) + sum(left_out.values()),
            "left_out": left_out,
            "part": whole and whole.part.stated,
            "whole": whole and {"requests": whole.requests, "duration_s": whole.duration_s},
        }

    @property
    def tick_note(self) -> str | None:
        """Note on the spreading of a coarse clock's arrivals; None for a fine clock."""
        if self.tick_s is None:
            return None
        return (
            f"times were recorded every {self.tick_s:g} s; requests of one time are spread at "
            "random over the time to the next"
        )

    def note(self, longest_tokens: float = math.inf) -> str | None:
        """Note on requests that a latency table does not replay as recorded; None if there are
        none.

        Args:
          longest_tokens: of a request that is served, prompt and output together.
        """
        notes = [] if self.tick_note is None else [self.tick_note]
        if self.skipped:
            total = len(self) + self.skipped
            notes.append(f"{self.skipped:,} of {total:,} requests failed and are left out")
        rejected = int((self.total_tokens > longest_tokens).sum())
        if rejected:
            notes.append(
                f"{rejected:,} of {len(self):,} requests ({rejected / len(self):.1%}) have more "
                f"tokens, prompt and output together, than the {longest_tokens:,.0f} that KV pool "
                "and context length allow; they are rejected, and count as missed"
            )
        requests, tokens = self.beyond_table
        if requests and longest_tokens > MAX_CONTEXT_TOKENS:
            notes.append(
                f"{requests:,} of {len(self):,} requests are longer, prompt and output together, "
                f"than the {MAX_CONTEXT_TOKENS:,} tokens that latency tables know; they are "
                f"shortened by {tokens:,} tokens in all"
            )
        return "; ".join(notes) or None


def _load(requests: int, duration_s: float) -> str:
    """Number, span and rate."""
    unit, name = next((each for each in _SPANS if duration_s >= 2.0 * each[0]), _SPANS[-1])
    rate = f", {requests / duration_s:.3g}/s" if duration_s > 0.0 else ""
    return f"{requests:,} requests in {duration_s / unit:.3g} {name}{rate}"


def load_trace(
    path: str | Path,
    format: str | None = None,
    time_scale: float = 1.0,
    time_unit: str | None = None,
    part: TracePart = WHOLE,
    advance: Advance | None = None,
) -> Trace:
    """Reads a trace file.

    Args:
      path: the file.
      format: one of ``trace_files.formats.FORMATS``, or None to tell from the file.
      time_scale: how much faster than recorded requests arrive; 2 doubles the load.
      time_unit: ``s``, ``ms``, ``us`` or ``ns``, of the file's times; None for that of the format.
      part: the part of the file that is taken.
      advance: told how many MiB of a large file are read, and how many it has.

    Raises:
      InputError: the file cannot be read (see ``read_rows``); the message names file, line and
        column.
    """
    checks.positive("time_scale", time_scale)
    rows = read_rows(path, format, time_unit, part, advance)
    tick_s = _coarse_tick_s(rows.time_s)
    arrival_s = rows.time_s - rows.time_s[0]
    if tick_s is not None:
        arrival_s = spread_in_ticks(arrival_s, tick_s)
    arrival_s /= time_scale  # in place: a week has tens of millions
    return Trace(
        arrival_s=arrival_s,
        prompt_tokens=rows.prompt,
        output_tokens=rows.output,
        time_unit=rows.time_unit,
        skipped=rows.failed,
        whole=rows.whole,
        blocks=rows.blocks,
        tick_s=None if tick_s is None else round(tick_s, 3),
        kinds=rows.kinds,
        kind=rows.kind,
    )


def _coarse_tick_s(time_s: NDArray[np.float64]) -> float | None:
    """The step of which all times are multiples, if it is long and times are shared."""
    first_steps_s = np.diff(time_s[:_GLANCE])
    if np.any((first_steps_s > 0.0) & (first_steps_s < COARSE_TICK_S)):
        return None
    steps_s = np.diff(time_s)
    apart = steps_s > 0.0
    if apart.sum() < _MIN_TICKS or apart.all():
        return None
    shortest_s = steps_s.min(where=apart, initial=np.inf)
    if shortest_s < COARSE_TICK_S:
        return None
    steps_s = steps_s[apart]
    tick_s = float(np.median(steps_s[steps_s < 1.5 * shortest_s]))
    off_s = np.abs(steps_s - tick_s * np.rint(steps_s / tick_s))
    return tick_s if off_s.max() <= _TICK_TOLERANCE * tick_s else None


def spread_in_ticks(time_s: NDArray[np.float64], tick_s: float) -> NDArray[np.float64]:
    """Times drawn uniformly in the ticks of a clock; the same for the same times.

    Args:
      time_s: float64[n], non-decreasing, the begin of each request's tick.
      tick_s: length of a tick; one that the next begins earlier ends there.

    Returns:
      float64[n], non-decreasing, the first 0.
    """
    _, first, count = np.unique(time_s, return_index=True, return_counts=True)
    length_s = np.minimum(tick_s, np.append(np.diff(time_s[first]), tick_s))
    rng = np.random.default_rng(_SPREAD_SEED)
    spread_s = np.sort(time_s + np.repeat(length_s, count) * rng.random(len(time_s)))
    return spread_s - spread_s[0]
