"""Logs of requests that an engine has served: a trace, and how long each of them took.

Read are, told apart by their fields:

- ``vllm bench serve --save-result --save-detailed``: one JSON object with a list for each quantity;
- JSON lines with ``queued_ts``, ``first_token_ts`` and ``last_token_ts``, as vLLM's own request
  statistics are commonly written down;
- JSON lines of ``jaxserve gateway --records``;
- GuideLLM's JSON and AIPerf's JSON lines of single requests;
- every trace that ``jaxserve.sim.traffic.traces`` reads, which tells no latencies.

Requests that failed are left out, and counted. Times are seconds unless their unit is named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.file_formats import recognise
from jaxserve.sim.traffic.tool_logs import refuse_unread, tool_requests
from jaxserve.sim.traffic.trace_files.formats import MAX_TOKENS, TIME_UNITS
from jaxserve.sim.traffic.trace_files.part import WHOLE, Draw, TracePart, WholeFile
from jaxserve.sim.traffic.trace_files.text import Advance
from jaxserve.sim.traffic.trace_files.units import check_clock
from jaxserve.sim.traffic.traces import Trace, load_trace

Array = NDArray[np.float64]
_Row = tuple[float, int, int, float, float]
"""Arrival (s), prompt and output tokens, TTFT (s), TPOT (s; NaN for one token); both latencies are
NaN where the request was not streamed."""
_MAX_S = 1e12
MAX_LOG_BYTES = 256 * 2**20
"""Bytes of the largest log."""


@dataclass(frozen=True, eq=False)
class RequestLog:
    """n requests in order of arrival."""

    trace: Trace
    """when they came, and how long they were; ``skipped`` are those that failed."""
    ttft_s: Array | None
    """float64[n], time to first token, NaN for requests that were not streamed; None where the file
    does not tell."""
    tpot_s: Array | None
    """float64[n], mean time per further token, also NaN for outputs of one; None likewise."""
    of_client: bool = False
    """whether times are those of the engine's client, with a front end in them."""


def load_request_log(
    path: Path | str,
    run: int | None = None,
    time_unit: str | None = None,
    part: TracePart = WHOLE,
    advance: Advance | None = None,
) -> RequestLog:
    """Reads a log or a trace.

    Args:
      path: the file.
      run: which of several runs that ``vllm bench serve --append-result`` has put into one file,
        from 1 on.
      time_unit: of a trace, see ``load_trace``, or of a log's times, which are seconds otherwise.
      part: the part of the file that is taken. Failed requests of a log have no time, so that all
        of the file's are counted.
      advance: see ``load_trace``.

    Raises:
      InputError: the file cannot be read, holds several runs of which none is named, or a row is
        not what its format says; the message names file, line or request, and field. Also a unit
        that is most likely another one.
    """
    name = str(path)
    data = _log_text(name)
    first = _object(data.split(b"\n", 1)[0])
    whole = _object(data) if first is None else first
    reader = _reader(whole)
    if reader is None and whole is not None:
        refuse_unread(name, whole)
    if reader is _of_benchmark:
        whole = _chosen_run(name, whole, data, run)
    elif reader is _of_tool:
        objects = [whole or {}] if first is None else _lines(name, data)
        whole = tool_requests(name, objects, run, time_unit)
    elif run is not None:
        raise InputError(f"{name} holds no runs of vllm bench serve, of which run {run} is one")
    if reader is None:
        return RequestLog(load_trace(path, None, 1.0, time_unit, part, advance), None, None)
    return _log(name, list(reader(name, whole, data)), time_unit, part, reader is _of_engine)


def _log_text(name: str) -> bytes:
    """The text of a file that may be a log; only its first line where that is a trace's."""
    try:
        with open(name, "rb") as file:
            head = file.readline(MAX_LOG_BYTES)
            line = _object(head)
            if not head.lstrip().startswith(b"{") or (line is not None and not _reader(line)):
                return head.strip()
            data = head + file.read(MAX_LOG_BYTES)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > MAX_LOG_BYTES:
        raise InputError(f"{name} is a log of more than {MAX_LOG_BYTES // 2**20} MiB; cut it first")
    return data.strip()


def _log(
    name: str, rows: list[_Row | None], time_unit: str | None, part: TracePart, unsure: bool
) -> RequestLog:
    """The requests of a log.

    Args:
      rows: requests in any order, None for each that failed.
      unsure: whether the format leaves the unit of times open.
    """
    served = [row for row in rows if row is not None]
    if not served:
        raise InputError(f"{name} holds no request that was served")
    served.sort(key=lambda row: row[0])
    arrival, prompt, output, *latencies = np.array(served, float).T
    span = float(arrival[-1] - arrival[0])
    unit = checks.one_of("time_unit", time_unit or "s", tuple(TIME_UNITS))
    if unsure and time_unit is None:
        check_clock(name, unit, len(served), float(arrival[0]), span)
    second = TIME_UNITS[unit]
    start_s, end_s = part.span_s(name, float(arrival[0]), second)
    after_s = (arrival - arrival[0]) / second
    inside = (after_s >= start_s) & (after_s < end_s)
    taken = inside & Draw(part).next(len(served))
    if not taken.any():
        raise InputError(f"{name} has no request in the part; its last one is at {after_s[-1]:g} s")
    left_out = {"outside": int((~inside).sum()), "not_sampled": int((inside & ~taken).sum())}
    of_file = WholeFile(part, len(rows), len(served), span / second, left_out)
    trace = Trace(
        arrival_s=after_s[taken] - after_s[taken][0],
        prompt_tokens=prompt[taken].astype(np.int32),
        output_tokens=output[taken].astype(np.int32),
        time_unit=unit,
        skipped=len(rows) - len(served),
        whole=of_file if part.stated else None,
    )
    ttft_s, tpot_s = (times[taken] / second for times in latencies)
    if np.isnan(ttft_s).all():
        return RequestLog(trace, None, None, of_client=not unsure)
    return RequestLog(trace, ttft_s, tpot_s, of_client=not unsure)


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
    found = None if first is None else recognise(first)
    return _of_tool if found is not None and found.requests else None


def _of_tool(name: str, rows: Any, data: bytes) -> Iterator[_Row | None]:
    """Requests that ``tool_requests`` has read."""
    del name, data
    return iter(rows)


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
    """Requests that were completed, with the tokens of their one output counted; latencies are NaN
    where it was not streamed."""
    del first
    for row in _lines(name, data):
        counted = row.get("prompt_tokens") and row.get("output_tokens")
        if row.get("outcome") != "completed" or not counted or row.get("parallel"):
            yield None
            continue
        prompt, output = (
            row.whole(field, 1, MAX_TOKENS) for field in ("prompt_tokens", "output_tokens")
        )
        if row.get("first_token_s") is None:
            yield row.number("arrival_s", 0, _MAX_S), prompt, output, math.nan, math.nan
            continue
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
