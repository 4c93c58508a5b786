"""Whether the runs of a file are what a fit takes them for: the steady state of one plain engine.

Refused are runs of another engine or of several, failed requests, too few of them to fill every
slot several times, requests by a clock, drafts, more in flight than the engine runs, and times that
contradict each other.
"""

import re
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError, InputWarning
from jaxserve.fields import Tier
from jaxserve.sim.fit.runs import Runs, to_number

Array = NDArray[np.float64]

_MOST_FAILED = 0.02
"""Share of a run's requests that may have failed, with a warning."""
_FEWEST_REQUESTS = 3
"""Requests for each one in flight, below which filling and emptying the engine is much of a run."""
_ENOUGH_REQUESTS = 5
"""Requests for each one in flight, below which a warning says so."""
_LIKELY = (1 / 1.5, 1.5)
"""Ratio of a figure to what the other figures of its run give. Means over requests of many lengths
differ by less."""
_TIERS = {16: 0, 8: 1, 4: 2}
"""Quantisation tier of weights with a number of bits."""
_MEDIAN_TTFT = (1.0 / 200.0, 2.0)
"""Median of TTFT as a share of its mean, which a few waits for a slot may raise far above it."""


def check_engine(
    runs: Runs,
    tensor_parallel: int,
    token_budget: int | None,
    model: str | None,
    tier: int | None,
) -> dict[str, str]:
    """Refuses runs of another engine than the fit is for, or of several; see ``read_sweep``.

    Returns:
      what the file says of the engine: model, GPU, framework and others, by path.

    Raises:
      InputError: names row, column and value.
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
    engine = {}
    paths = {each: each for each in runs.format.same} | {"model": runs.path("model")}
    for what, path in paths.items():
        texts = _texts(runs, path)
        if len(texts) > 1:
            raise InputError(
                f"its rows are of several engines: {path} is {', '.join(texts[:4])}; keep those of "
                "one"
            )
        if texts:
            engine[what] = texts[0]
    named = engine.get("model", "")
    if model and _sizes(named) and _sizes(model) not in (set(), _sizes(named)):
        raise InputError(
            f"it is of the model {named}, and the fit is for {model}; name a load test of the same "
            "model"
        )
    bits = re.search(r"\d+", engine.get("precision", ""))
    if tier is not None and bits and int(bits[0]) in _TIERS and tier != _TIERS[int(bits[0])]:
        raise InputError(
            f"it is of precision {engine['precision']}, and the fit is for tier {tier}, "
            f"{Tier(tier).name}; name tier {_TIERS[int(bits[0])]}"
        )
    return engine


def _texts(runs: Runs, path: str | None) -> list[str]:
    """Different texts under a path, sorted."""
    cells = () if path is None else runs.cells(path)
    return sorted({", ".join(map(str, v)) if isinstance(v, list) else str(v) for _, v in cells})


def _sizes(name: str) -> set[str]:
    """Sizes in the name of a model, such as 70b."""
    return set(re.findall(r"(?<![^\s/_,-])\d+(?:\.\d+)?b(?![^\s/_,-])", name.lower()))


def check_steady(runs: Runs, concurrency: Array) -> int:
    """Refuses runs in which requests failed, waited for a slot, or began and ended together.

    Returns:
      number of requests that failed.
    """
    asked, done, failures = (runs.counted(what) for what in ("requests", "completed", "failed"))
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
    return round(lost_of_all)


def check_times(
    runs: Runs, concurrency: Array, output_tokens: Array, tpot_s: Array, ttft_s: Array | None
) -> None:
    """Refuses runs whose times contradict each other, as in different units or of other lengths.

    A request takes its first token and the others at TPOT. No more than half of the first tokens
    take twice their mean, so that the median is below that. A warning says where other requests
    were in flight than the file says: by Little's law, as many as are completed per second, times
    how long each takes.

    Args:
      runs: the file's runs; the other arguments are float64[n] of them.
      concurrency: requests in flight.
      output_tokens: mean lengths of outputs.
      tpot_s: TPOT.
      ttft_s: TTFT, of which formats give the median where they have it.
    """
    latency_s, first_s, speed = (
        runs.values(what, None, gaps=True)
        for what in ("mean latency", "mean TTFT", "tokens per second of a request")
    )
    mean_s = ttft_s if first_s is None else first_s
    expected_s = tpot_s * (output_tokens - 1.0) + (0.0 if mean_s is None else mean_s)
    # A few waits for a slot may make the mean TTFT, which the file lacks, far longer.
    longest = np.inf if first_s is None else _LIKELY[1]
    for what, said, found, (low, high) in (
        ("a request's latency in s", latency_s, expected_s, (_LIKELY[0], longest)),
        ("tokens per second of a request", speed, 1.0 / tpot_s, _LIKELY),
        ("TTFT in s", ttft_s, first_s, _MEDIAN_TTFT),
    ):
        if said is None or found is None:
            continue
        for i in _outside(said / found, low, high):
            raise InputError(
                f"in row {i + 1} {what} is {said[i]:.4g}, and the other figures of the row give "
                f"{found[i]:.4g}; a time is in another unit, or a column is of other requests"
            )
    rate = _completed_per_s(runs, output_tokens)
    if rate is not None:
        in_flight = rate * (expected_s if latency_s is None else latency_s)
        rows = _outside(concurrency / in_flight, *_LIKELY)
        if len(rows):
            warnings.warn(
                f"in {_rows(row + 1 for row in rows)} other numbers of requests were in flight "
                f"than the file says: {in_flight[rows[0]]:.4g} by rate and latency, and "
                f"{concurrency[rows[0]]:g} said",
                InputWarning,
                stacklevel=2,
            )


def _outside(ratio: Array, low: float, high: float) -> NDArray[np.int64]:
    """Indices of ratios that are not between two numbers; NaN, of what a run lacks, is none."""
    return np.flatnonzero((ratio < low) | (ratio > high))


def _completed_per_s(runs: Runs, output_tokens: Array) -> Array | None:
    """Requests completed per second, float64[n], NaN for a run that does not tell; None where the
    file does not."""
    rate, tokens, gpus, duration_s = (
        runs.values(what, None, gaps=True)
        for what in ("rate", "output tokens per second", "tensor parallel", "duration")
    )
    if rate is not None:
        return rate
    if tokens is not None and gpus is not None:
        return tokens * gpus / output_tokens
    if duration_s is None:
        return None
    done = runs.counted("completed")
    return np.array([done.get(i, np.nan) for i in range(1, len(runs) + 1)]) / duration_s


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
    except (TypeError, ValueError, OverflowError):
        return False
