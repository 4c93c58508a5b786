"""Logs of requests that an engine has served: a trace, and how long each of them took.

Read are, told apart by their fields:

- ``vllm bench serve --save-result --save-detailed``: one JSON object with a list for each quantity;
- JSON lines with ``queued_ts``, ``first_token_ts`` and ``last_token_ts``, as vLLM's own request
  statistics are commonly written down;
- JSON lines of ``jaxserve gateway --records``;
- every trace that ``jaxserve.sim.traffic.traces`` reads, which tells no latencies.

Requests that failed are left out, and counted. Times are seconds unless their unit is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files import MAX_TOKENS, MAX_TRACE_BYTES, TIME_UNITS
from jaxserve.sim.traffic.traces import Trace, load_trace

Array = NDArray[np.float64]
_Row = tuple[float, int, int, float, float]
"""Arrival (s), prompt and output tokens, TTFT (s), TPOT (s; NaN for one token)."""
_MAX_S = 1e12


@dataclass(frozen=True, eq=False)
class RequestLog:
    """n requests in order of arrival."""

    trace: Trace
    """when they came, and how long they were; ``skipped`` are those that failed."""
    ttft_s: Array | None
    """float64[n], time to first token; None where the file does not tell."""
    tpot_s: Array | None
    """float64[n], mean time per token after the first, NaN for outputs of one; None likewise."""
    of_client: bool = False
    """whether times are those of the engine's client, with a front end in them."""


def load_request_log(
    path: Path | str, run: int | None = None, time_unit: str | None = None
) -> RequestLog:
    """Reads a log or a trace.

    Args:
      path: the file.
      run: which of several runs that ``vllm bench serve --append-result`` has put into one file,
        from 1 on.
      time_unit: of a trace, see ``load_trace``, or of a log's times, which are seconds otherwise.

    Raises:
      InputError: the file cannot be read, holds several runs of which none is named, or a row is
        not what its format says; the message names file, line or request, and field.
    """
    name = str(path)
    try:
        if Path(path).stat().st_size > MAX_TRACE_BYTES:
            raise InputError(f"{name} is larger than {MAX_TRACE_BYTES // 2**20} MiB")
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    first = _object(data.lstrip().split(b"\n", 1)[0])
    whole = _object(data) if first is None else first
    reader = _reader(whole)
    if reader is _of_benchmark:
        whole = _chosen_run(name, whole, data, run)
    elif run is not None:
        raise InputError(f"{name} holds no runs of vllm bench serve, of which run {run} is one")
    if reader is None:
        return RequestLog(load_trace(path, time_unit=time_unit), None, None)
    second = TIME_UNITS[checks.one_of("time_unit", time_unit or "s", tuple(TIME_UNITS))]
    rows = list(reader(name, whole, data))
    served = [row for row in rows if row is not None]
    if not served:
        raise InputError(f"{name} holds no request that was served")
    served.sort(key=lambda row: row[0])
    arrival_s, prompt, output, ttft_s, tpot_s = np.array(served, float).T
    arrival_s, ttft_s, tpot_s = (times / second for times in (arrival_s, ttft_s, tpot_s))
    trace = Trace(
        arrival_s=arrival_s - arrival_s[0],
        prompt_tokens=prompt.astype(np.int32),
        output_tokens=output.astype(np.int32),
        skipped=len(rows) - len(served),
    )
    return RequestLog(trace, ttft_s, tpot_s, of_client=reader is not _of_engine)


_Reader = Callable[[str, Any, bytes], Iterator[_Row | None]]


def _reader(first: dict[str, Any] | None) -> _Reader | None:
    """Reader of a file that is or begins with an object; None where it is no log."""
    for field, reader in (
        ("ttfts", _of_benchmark),
        ("queued_ts", _of_engine),
        ("arrival_unix_s", _of_gateway),
    ):
        if first is not None and field in first:
            return reader
    return None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _chosen_run(name: str, first: Any, data: bytes, run: int | None) -> Any:
    """The run that is meant, of a file with one line for each."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    if len(lines) < 2 or _object(lines[0]) is None:  # one object, perhaps over many lines
        lines = [data]
    if run is None and len(lines) > 1:
        raise InputError(f"{name} holds {len(lines)} runs; say which (--run 1 to {len(lines)})")
    number = checks.whole("run", 1 if run is None else run, 1, len(lines))
    chosen = first if number == 1 else _object(lines[number - 1])
    if chosen is None:
        raise InputError(f"{name}, line {number}: not a whole JSON object; the line is cut off")
    return chosen


def _of_benchmark(name: str, result: Any, data: bytes) -> Iterator[_Row | None]:
    """Lists of one length; a request that failed has an error."""
    del data
    fields = checks.JsonObject(result, name)
    names = ("start_times", "input_lens", "output_lens", "ttfts", "itls")
    lists = {field: fields.get(field, checks.MISSING) for field in names}
    if lists["start_times"] is checks.MISSING and isinstance(lists["ttfts"], list):
        raise InputError(
            f"{name} does not say when requests were sent, so there is no trace to simulate: "
            "start_times is missing, which vllm bench serve --save-detailed writes since January "
            "2026 and sglang.bench_serving does not"
        )
    for field, values in lists.items():
        if not isinstance(values, list) or len(values) != len(lists["ttfts"]):
            allowed = "a list with an entry for every request, as --save-detailed writes it"
            checks.refuse(fields.name(field), values, allowed)
    errors = fields.get("errors") or [""] * len(lists["ttfts"])
    for i, (start_s, prompt, output, ttft_s, gaps) in enumerate(zip(*lists.values(), strict=True)):
        if errors[i] or not output:
            yield None
            continue
        row = checks.JsonObject(
            {
                "start_times": start_s,
                "input_lens": prompt,
                "output_lens": output,
                "ttfts": ttft_s,
                "itls": _sum(gaps),
            },
            f"{name}, request {i + 1}",
        )
        tokens = row.whole("output_lens", 1, MAX_TOKENS)
        decode_s = row.number("itls", 0, _MAX_S)
        yield (
            row.number("start_times", 0, _MAX_S),
            row.whole("input_lens", 1, MAX_TOKENS),
            tokens,
            row.number("ttfts", 0, _MAX_S),
            decode_s / (tokens - 1) if tokens > 1 else float("nan"),
        )


def _sum(gaps: Any) -> Any:
    try:
        return float(sum(gaps))
    except (TypeError, ValueError):
        return gaps


def _of_engine(name: str, first: Any, data: bytes) -> Iterator[_Row | None]:
    """Times on the engine's clock; a request without a last token failed."""
    del first
    for row in _lines(name, data):
        if row.get("last_token_ts") is None:
            yield None
            continue
        prompt, output = _either(row, "input_toks"), _either(row, "output_toks")
        queued_s, first_s, last_s = (
            row.number(field, 0, _MAX_S)
            for field in ("queued_ts", "first_token_ts", "last_token_ts")
        )
        yield _row(row, queued_s, prompt, output, first_s, last_s)


def _either(row: checks.JsonObject, field: str) -> int:
    """Tokens under one of two usual names."""
    long = field.replace("toks", "tokens")
    return row.whole(long if long in row else field, 1, MAX_TOKENS)


def _of_gateway(name: str, first: Any, data: bytes) -> Iterator[_Row | None]:
    """Requests that were completed, with their tokens counted."""
    del first
    for row in _lines(name, data):
        counted = row.get("prompt_tokens") and row.get("output_tokens")
        streamed = row.get("first_token_s") is not None and not row.get("parallel")
        if row.get("outcome") != "completed" or not counted or not streamed:
            yield None
            continue
        prompt, output = (
            row.whole(field, 1, MAX_TOKENS) for field in ("prompt_tokens", "output_tokens")
        )
        start_s, first_s, last_s = (
            row.number(field, 0, _MAX_S) for field in ("arrival_s", "first_token_s", "last_token_s")
        )
        yield _row(row, start_s, prompt, output, first_s, last_s)


def _row(
    row: checks.JsonObject, start_s: float, prompt: int, output: int, first_s: float, last_s: float
) -> _Row:
    if not start_s <= first_s <= last_s:
        raise InputError(f"{row.where}: its first token is before it, or after its last")
    tpot_s = (last_s - first_s) / (output - 1) if output > 1 else float("nan")
    return start_s, prompt, output, first_s - start_s, tpot_s


def _lines(name: str, data: bytes) -> Iterator[checks.JsonObject]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            where = f"{name}, line {number}"
            row = _object(line)
            if row is None:
                raise InputError(
                    f"{where}: not a whole JSON object; the line is cut off or damaged"
                )
            yield checks.JsonObject(row, where)
