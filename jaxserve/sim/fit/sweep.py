"""A measured load test: one point per run of a concurrency sweep.

A fit takes each run for the steady state of a plain engine that always has so many requests in
flight. What a file says otherwise is refused: failed requests, too few of them to fill every slot
several times, requests by a clock, drafts, more in flight than the engine runs, runs of several
engines, and times that contradict each other.
"""

import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.fit.runs import Runs, read_runs, to_number

MIN_ROWS = 8
"""Fewer points cannot tell the constants of a cost model apart."""

_MOST_FAILED = 0.02
"""Share of a run's requests that may have failed, with a warning."""
_FEWEST_REQUESTS = 3
"""Requests for each one in flight, below which filling and emptying the engine is much of a run."""
_ENOUGH_REQUESTS = 5
"""Requests for each one in flight, below which a warning says so."""
_CONTRADICTION = 1.5
"""Times by which a request's latency, or the requests in flight, may differ from what the other
times of the run give. Means over requests of many lengths differ by less."""
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
    """description of the files, in one line."""
    left_out: int = 0
    """requests that failed or were cut off, which the times leave out."""

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
        )


def read_sweep(
    paths: Path | str | Sequence[Path | str],
    tensor_parallel: int = 1,
    token_budget: int | None = None,
    model: str | None = None,
) -> Sweep:
    """Reads and checks a sweep measured on ``tensor_parallel`` GPUs.

    Args:
      paths: the file, or several of one engine.
      tensor_parallel: what the fit is for; a file that says otherwise is refused.
      token_budget: tokens of an iteration that the fit is for, likewise; None for any.
      model: name of the model that the fit is for, likewise; None for any.

    Raises:
      InputError: unreadable, too large, fewer than ``MIN_ROWS`` runs, of no known format, a column
        that is unknown or missing, a value that is missing or out of range, or runs that are no
        steady state of a plain engine; the message names file, row (from 1) and column.
    """
    several = [paths] if isinstance(paths, Path | str) else list(paths)
    files = []
    for path in map(Path, several):
        runs = read_runs(path)
        try:
            files.append(_read(runs, path.name, tensor_parallel, token_budget, model))
        except InputError as error:
            raise InputError(f"sweep file {path}: {error}") from None
    sweep = _joined(files)
    if len(sweep) < MIN_ROWS:
        named = ", ".join(map(str, several))
        raise InputError(
            f"sweep file {named}: it has {_rows_text(len(sweep))}; at least {MIN_ROWS} are required"
            f"{', in one file or several' if len(files) == 1 else ''}"
        )
    return sweep


def _joined(sweeps: Sequence[Sweep]) -> Sweep:
    """The rows of several sweeps; TTFT where all have it."""
    arrays = {
        each.name: np.concatenate([getattr(sweep, each.name) for sweep in sweeps])
        for each in fields(Sweep)
        if all(isinstance(getattr(sweep, each.name), np.ndarray) for sweep in sweeps)
    }
    note = "\n".join(sweep.note for sweep in sweeps)
    left_out = sum(sweep.left_out for sweep in sweeps)
    return Sweep(**{"ttft_s": None, **arrays}, note=note, left_out=left_out)


def _read(
    runs: Runs, name: str, tensor_parallel: int, token_budget: int | None, model: str | None
) -> Sweep:
    """The points of a file's runs, checked."""
    if not len(runs):
        raise InputError(f"it has no rows; at least {MIN_ROWS} are required")
    _check_engine(runs, tensor_parallel, token_budget, model)
    prompt = _needed(runs, "prompt length", runs.lengths("prompt length", 1.0))
    output = _needed(runs, "output length", runs.lengths("output length", 2.0))
    concurrency = _needed(runs, "concurrency", runs.values("concurrency", 1.0))
    tpot_s = runs.values("TPOT", None)
    tpot_s = _needed(runs, "TPOT", _tpot_s(runs, output) if tpot_s is None else tpot_s)
    if runs.format.nominal_lengths:
        prompt, output = _mean_lengths(runs, prompt, output, tpot_s)
    sweep = Sweep(concurrency, prompt, output, tpot_s, runs.values("TTFT", None))
    left_out = _check_steady(runs, concurrency)
    _check_times(runs, sweep)
    return replace(sweep, note=_note(runs, sweep, name, left_out), left_out=sum(left_out.values()))


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


def _check_engine(
    runs: Runs, tensor_parallel: int, token_budget: int | None, model: str | None
) -> None:
    """Refuses runs of another engine than the fit is for, or of several.

    Raises:
      InputError: see ``read_sweep``.
    """
    for what, expected in (("tensor parallel", tensor_parallel), ("token budget", token_budget)):
        for path in runs.format.quantities.get(what, ()):
            for number, value in runs.cells(path):
                where = f"row {number}, column {path}"
                if expected is not None and to_number(where, value) != expected:
                    checks.refuse(where, value, f"{expected}, which the fit is for")
    for path in runs.format.quantities.get("request rate", ()):
        for number, value in runs.cells(path):
            if not _is_endless(value):
                allowed = "inf, as in a load test that keeps requests in flight"
                checks.refuse(f"row {number}, column {path}", value, allowed)
    for path, most in runs.format.no_drafts.items():
        for number, value in runs.cells(path):
            if to_number(f"row {number}, column {path}", value) > most:
                allowed = (
                    "that of an engine without drafts, as the fit takes TPOT for that of "
                    "speculation depth 0"
                )
                checks.refuse(f"row {number}, column {path}", value, allowed)
    for path, allowed in runs.format.must_be.items():
        for number, value in runs.cells(path):
            if str(value).lower() not in allowed:
                checks.refuse(
                    f"row {number}, column {path}",
                    value,
                    f"{' or '.join(allowed)}, as of one plain engine that keeps requests in flight",
                )
    named = _texts(runs, runs.path("model"))
    for path, texts in {**{p: _texts(runs, p) for p in runs.format.same}, "model": named}.items():
        if len(texts) > 1:
            raise InputError(
                f"its rows are of several engines: {path} is {', '.join(texts[:4])}; keep those of "
                "one"
            )
    if model and named and _sizes(named[0]) and _sizes(model) not in (set(), _sizes(named[0])):
        raise InputError(
            f"it is of the model {named[0]}, and the fit is for {model}; name a load test of the "
            "same model"
        )


def _texts(runs: Runs, path: str | None) -> list[str]:
    """Different texts under a path, sorted."""
    cells = () if path is None else runs.cells(path)
    return sorted({", ".join(v) if isinstance(v, list) else str(v) for _, v in cells})


def _sizes(name: str) -> set[str]:
    """Sizes in the name of a model, such as 70b."""
    return set(re.findall(r"(?<![^\s/_,-])\d+(?:\.\d+)?b(?![^\s/_,-])", name.lower()))


def _check_steady(runs: Runs, concurrency: Array) -> dict[str, int]:
    """Refuses runs in which requests failed, waited for a slot, or began and ended together.

    Returns:
      requests that the times leave out, by reason.
    """
    asked, done, failures, unfinished = (
        runs.counted(what) for what in ("requests", "completed", "failed", "unfinished")
    )
    failed: dict[int, float] = {}
    few, short, lost_of_all = [], [], 0.0
    for number, in_flight in enumerate(concurrency, 1):
        completed, sent = done.get(number), asked.get(number)
        lost = failures.get(number, 0.0)
        if completed is not None and sent is not None:
            lost = max(lost, sent - completed)
        total = lost + (completed if completed is not None else (sent or 0.0) - lost)
        if lost > 0.0:
            failed[number] = lost / max(total, lost)
        lost_of_all += lost
        started = sent if sent is not None else completed
        if started is not None and in_flight > 1.0 and started < _ENOUGH_REQUESTS * in_flight:
            (few if started < _FEWEST_REQUESTS * in_flight else short).append(number)
    if failed and max(failed.values()) > _MOST_FAILED:
        number = max(failed, key=lambda each: failed[each])
        raise InputError(
            f"in row {number} {failed[number]:.0%} of the requests failed, so that its times are "
            f"not those of so many in flight; at most {_MOST_FAILED:.0%} may"
        )
    if few:
        raise InputError(
            f"{_rows(few)} had fewer than {_FEWEST_REQUESTS} requests for each one in flight, so "
            "that no slot was refilled often; measure with num_prompts of ten times the concurrency"
        )
    capped = [
        (number, path, value)
        for path in runs.format.quantities.get("batch cap", ())
        for number, value in runs.cells(path)
        if to_number(f"row {number}, column {path}", value) < concurrency[number - 1]
    ]
    if capped:
        number, path, value = capped[0]
        raise InputError(
            f"{_rows(each[0] for each in capped)} had more requests in flight than the engine runs "
            f"(row {number}: {path} {value}, {concurrency[number - 1]:g} in flight); leave them out"
        )
    said = {
        f"requests failed in {_rows(failed)}": failed,
        f"{_rows(short)} had fewer than {_ENOUGH_REQUESTS} requests for each one in flight, so "
        "that filling and emptying the engine is part of the times": short,
    }
    for sentence in (sentence for sentence, numbers in said.items() if numbers):
        warnings.warn(sentence, InputWarning, stacklevel=2)
    return {"failed": round(lost_of_all), "were cut off": round(sum(unfinished.values()))}


def _check_times(runs: Runs, sweep: Sweep) -> None:
    """Refuses runs whose times contradict each other, as in different units or of other lengths.

    A request takes its first token and the others at TPOT. By Little's law, the requests in flight
    are those that are completed per second, times how long each takes.
    """
    latency_s, first_s, duration_s, speed = (
        runs.values(what, None, gaps=True)
        for what in ("mean latency", "mean TTFT", "duration", "tokens per second of a request")
    )
    ttft_s = sweep.ttft_s if first_s is None else first_s
    expected_s = sweep.tpot_s * (sweep.output_tokens - 1.0) + (0.0 if ttft_s is None else ttft_s)
    completed = runs.counted("completed")
    for i, number in enumerate(range(1, len(runs) + 1)):
        pairs = {}
        if latency_s is not None and ttft_s is not None:
            pairs["a request's latency in s"] = (latency_s[i], expected_s[i])
        if duration_s is not None and number in completed:
            taken_s = expected_s[i] if latency_s is None else latency_s[i]
            in_flight = completed[number] / duration_s[i] * taken_s
            pairs["the number of requests in flight"] = (sweep.concurrency[i], in_flight)
        if speed is not None:
            pairs["tokens per second of a request"] = (speed[i], 1.0 / sweep.tpot_s[i])
        for what, (said, found) in pairs.items():
            ratio = said / found
            if ratio < 1.0 / _CONTRADICTION or ratio > _CONTRADICTION:  # neither where one is NaN
                raise InputError(
                    f"in row {number} {what} is {said:.4g}, and the other figures of the row give "
                    f"{found:.4g}; a time is in another unit, or a column is of other requests"
                )


def _note(runs: Runs, sweep: Sweep, name: str, left_out: dict[str, int]) -> str:
    """Description of a file in one line."""
    done, duration_s = runs.counted("completed"), runs.values("duration", None, gaps=True)
    text = (
        f"{name}: {_rows_text(len(runs))} ({runs.format.name}), {_span(sweep.concurrency)} in "
        f"flight, prompts of {_span(sweep.prompt_tokens)} and outputs of "
        f"{_span(sweep.output_tokens)} tokens, TPOT {_span(1e3 * sweep.tpot_s)} ms"
    )
    if sweep.ttft_s is not None:
        text += f", TTFT {_span(1e3 * sweep.ttft_s)} ms"
    if done:
        text += f", {sum(done.values()):,.0f} requests"
    if duration_s is not None and not np.isnan(duration_s).any() and len(done) == len(runs):
        span_s = float(duration_s.sum())
        text += f" in {span_s:,.0f} s, {sum(done.values()) / span_s:.3g}/s"
    lost = " and ".join(f"{count:,} that {why}" for why, count in left_out.items() if count)
    return f"{text}; {lost} are left out" if lost else text


def _span(values: Array) -> str:
    low, high = f"{values.min():,.4g}", f"{values.max():,.4g}"
    return low if low == high else f"{low} to {high}"


def _rows_text(count: int) -> str:
    return f"{count} row{'' if count == 1 else 's'}"


def _rows(numbers: Iterable[int]) -> str:
    """Numbers of rows in words."""
    listed = [*numbers]
    if len(listed) == 1:
        return f"row {listed[0]}"
    shown = ", ".join(map(str, listed[:8]))
    return f"rows {shown}{' and others' if len(listed) > 8 else ''}"


def _is_endless(value: Any) -> bool:
    """Whether a request rate is infinite."""
    try:
        return float(value) == float("inf")
    except (TypeError, ValueError):
        return False
