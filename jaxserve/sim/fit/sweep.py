"""A measured load test: one point per run of a concurrency sweep.

A fit takes each run for the steady state of a plain engine that always has so many requests in
flight; ``jaxserve.sim.fit.run_checks`` refuses what a file says otherwise.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.fit.run_checks import check_engine, check_steady, check_times
from jaxserve.sim.fit.runs import Runs, read_runs

MIN_ROWS = 8
"""Fewer points cannot tell the constants of a cost model apart."""

_NOMINAL = (0.4, 1.1)
"""Mean lengths as shares of those asked for: half where lengths are drawn from 0 on, a little more
than all with a chat template."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sweep:
    """Measured points; float64 arrays of one length."""

    concurrency: Array
    """requests in flight."""
    prompt_tokens: Array
    """prompt length of every request."""
    output_tokens: Array
    """output length of every request."""
    tpot_s: Array
    """time per output token after the first."""
    ttft_s: Array | None
    """time to first token; None where it was not recorded."""
    note: str = ""
    """what was understood of the files, in one line."""
    left_out: int = 0
    """requests that failed or were cut off, which the times leave out."""
    requests: Array | None = None
    """completed requests; NaN where a file does not tell, None where none does."""

    def __len__(self) -> int:
        return len(self.tpot_s)

    def axes(self) -> dict[str, NDArray[np.float64]]:
        """Axes of the rows in which a fit may extrapolate, by name."""
        return {
            "requests in flight": self.concurrency,
            "tokens in a sequence": self.prompt_tokens + self.output_tokens,
        }

    def single_lengths(self) -> dict[str, float]:
        """Lengths, by name, that are the same in all rows: a fit to these says nothing of other
        lengths."""
        lengths = {"prompts": self.prompt_tokens, "outputs": self.output_tokens}
        return {name: float(each[0]) for name, each in lengths.items() if len(np.unique(each)) == 1}

    def select(self, rows: NDArray[np.bool_]) -> "Sweep":
        """The points where ``rows`` is true."""
        return replace(
            self,
            concurrency=self.concurrency[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            tpot_s=self.tpot_s[rows],
            ttft_s=None if self.ttft_s is None else self.ttft_s[rows],
            requests=None if self.requests is None else self.requests[rows],
        )


def read_sweep(
    paths: Path | str | Sequence[Path | str],
    tensor_parallel: int = 1,
    token_budget: int | None = None,
    model: str | None = None,
    tier: int | None = None,
) -> Sweep:
    """Reads and checks a sweep measured on ``tensor_parallel`` GPUs.

    Args:
      paths: the file, or several of one engine.
      tensor_parallel: what the fit is for; a file that says otherwise is refused.
      token_budget: tokens of an iteration that the fit is for, likewise; None for any.
      model: name of the model that the fit is for, likewise; None for any.
      tier: quantisation tier that the fit is for, likewise; None for any.

    Raises:
      InputError: unreadable, too large, fewer than ``MIN_ROWS`` runs, of no known format, a column
        that is unknown or missing, a value that is missing or out of range, or runs that are no
        steady state of a plain engine; the message names file, row (from 1) and column.
    """
    several = [paths] if isinstance(paths, Path | str) else list(paths)
    files, facts, engine = [], [], {}
    for path in map(Path, several):
        runs = read_runs(path)
        try:
            own = check_engine(runs, tensor_parallel, token_budget, model, tier)
            for what in (each for each in own if own[each] != engine.get(each, own[each])):
                raise InputError(f"{what} is {own[what]}, and {engine[what]} in a file before")
            engine |= own
            points = _points(runs)
            files.append(points)
            facts.append(_Facts.of(runs, path.name, check_steady(runs, points.concurrency)))
        except InputError as error:
            raise InputError(f"sweep file {path}: {error}") from None
    sweep = _joined(files)
    if len(sweep) < MIN_ROWS:
        named = ", ".join(map(str, several))
        raise InputError(
            f"sweep file {named}: it has {_rows_text(len(sweep))}; at least {MIN_ROWS} are required"
            f"{', in one file or several' if len(files) == 1 else ''}"
        )
    left_out = sum(each.failed + each.cut_off for each in facts)
    return replace(sweep, note=_note(sweep, facts), left_out=left_out)


class _Facts(NamedTuple):
    """Facts of a file beside its points."""

    name: str
    format: str
    requests: float | None
    """completed; None where a run does not tell."""
    duration_s: float | None
    """of all runs; None likewise."""
    failed: int
    cut_off: int

    @classmethod
    def of(cls, runs: Runs, name: str, failed: int) -> "_Facts":
        done, spans_s = runs.counted("completed"), runs.values("duration", None, gaps=True)
        return cls(
            name,
            runs.format.name,
            sum(done.values()) if len(done) == len(runs) else None,
            None if spans_s is None or np.isnan(spans_s).any() else float(spans_s.sum()),
            failed,
            round(sum(runs.counted("unfinished").values())),
        )


def _joined(sweeps: Sequence[Sweep]) -> Sweep:
    """The rows of several sweeps; TTFT where all have it."""
    arrays = {
        each.name: np.concatenate([getattr(sweep, each.name) for sweep in sweeps])
        for each in fields(Sweep)
        if all(isinstance(getattr(sweep, each.name), np.ndarray) for sweep in sweeps)
    }
    lacking = [sweep for sweep in sweeps if sweep.ttft_s is None]
    if 0 < len(lacking) < len(sweeps):
        warnings.warn(
            f"TTFT is left out, as {len(lacking)} of {len(sweeps)} files have none",
            InputWarning,
            stacklevel=3,
        )
    return Sweep(**{"ttft_s": None, **arrays})


def _points(runs: Runs) -> Sweep:
    """The points of a file's runs, whose times agree with each other."""
    if not len(runs):
        raise InputError(f"it has no rows; at least {MIN_ROWS} are required")
    prompt = _needed(runs, "prompt length", runs.lengths("prompt length", 1.0))
    output = _needed(runs, "output length", runs.lengths("output length", 2.0))
    concurrency = _needed(runs, "concurrency", runs.values("concurrency", 1.0))
    tpot_s = runs.values("TPOT", None)
    if tpot_s is None and not runs.format.nominal_lengths:
        tpot_s = _tpot_s(runs, output)
    tpot_s = _needed(runs, "TPOT", tpot_s)
    if runs.format.nominal_lengths:
        prompt, output = _mean_lengths(runs, prompt, output, tpot_s)
    ttft_s = runs.values("TTFT", None)
    check_times(runs, concurrency, output, tpot_s, ttft_s)
    done = runs.counted("completed")
    completed = np.array([done.get(row, math.nan) for row in range(1, len(runs) + 1)])
    return Sweep(concurrency, prompt, output, tpot_s, ttft_s, requests=completed)


def _needed(runs: Runs, what: str, values: Array | None) -> Array:
    """Values of a quantity, without which runs are no load test."""
    if values is None:
        known = ", ".join(runs.format.quantities.get(what, runs.format.recognised_by))
        raise InputError(
            f"a column for {what} is missing; known are {known} ({runs.format.name}, which cannot "
            f"tell {runs.format.cannot_tell})"
        )
    return values


def _tpot_s(runs: Runs, output: Array) -> Array | None:
    """TPOT, float64[n], of a file that has only latencies: the time after the first token, divided
    by the tokens after it."""
    latency_s, ttft_s = runs.values("mean latency", None), runs.values("mean TTFT", None)
    if latency_s is None or ttft_s is None:
        return None
    for number, (whole, first) in enumerate(zip(latency_s, ttft_s, strict=True), 1):
        if whole <= first:
            raise InputError(
                f"in row {number} a request takes {whole:g} s and its first token {first:g} s, so "
                "that there is no time for the other tokens; requests must be streamed"
            )
    return (latency_s - ttft_s) / (output - 1.0)


def _mean_lengths(runs: Runs, prompt: Array, output: Array, tpot_s: Array) -> tuple[Array, Array]:
    """Mean lengths where a file has those asked for: outputs by the time after the first token,
    prompts by the throughputs of prompt and output tokens."""
    latency_s, ttft_s = runs.values("mean latency", None), runs.values("mean TTFT", None)
    rates = [runs.values(f"{kind} tokens per second", None) for kind in ("prompt", "output")]
    if latency_s is None or ttft_s is None or rates[0] is None or rates[1] is None:
        warnings.warn(
            "lengths are those that were asked for, and may have been shorter: the file has no "
            "latencies and throughputs that tell",
            InputWarning,
            stacklevel=2,
        )
        return prompt, output
    means = {"output length": (output, 1.0 + (latency_s - ttft_s) / tpot_s)}
    means["prompt length"] = (prompt, means["output length"][1] * rates[0] / rates[1])
    for what, (asked, mean) in means.items():
        for number, (most, found) in enumerate(zip(asked, mean, strict=True), 1):
            if not _NOMINAL[0] * most <= found <= _NOMINAL[1] * most:
                raise InputError(
                    f"in row {number} the {what} that was asked for is {most:g}, and latencies and "
                    f"throughputs say {found:.4g}; a time is in another unit, or of other requests"
                )
    return means["prompt length"][1], means["output length"][1]


def _note(sweep: Sweep, facts: Sequence[_Facts]) -> str:
    """The content of the files as it was understood, in one line."""
    others = f" and {len(facts) - 1} more" if len(facts) > 1 else ""
    formats = ", ".join(dict.fromkeys(each.format for each in facts))
    text = (
        f"{facts[0].name}{others}: {_rows_text(len(sweep))} ({formats}), "
        f"{_span(sweep.concurrency)} in flight, prompts of {_span(sweep.prompt_tokens)} and "
        f"outputs of {_span(sweep.output_tokens)} tokens, TPOT {_span(1e3 * sweep.tpot_s)} ms"
    )
    if sweep.ttft_s is not None:
        text += f", TTFT {_span(1e3 * sweep.ttft_s)} ms"
    requests = [each.requests for each in facts if each.requests is not None]
    spans_s = [each.duration_s for each in facts if each.duration_s is not None]
    if len(requests) == len(facts):
        text += f", {sum(requests):,.0f} requests"
        if len(spans_s) == len(facts):
            text += f" in {sum(spans_s):,.0f} s, {sum(requests) / sum(spans_s):.3g}/s"
    counts = {
        "failed": sum(each.failed for each in facts),
        "were cut off": sum(each.cut_off for each in facts),
    }
    lost = " and ".join(f"{count:,} that {why}" for why, count in counts.items() if count)
    return f"{text}; {lost} are left out" if lost else text


def _span(values: Array) -> str:
    low, high = f"{values.min():,.4g}", f"{values.max():,.4g}"
    return low if low == high else f"{low} to {high}"


def _rows_text(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"
