"""Traces from the request records of a gateway."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.gateway.measure.records import RequestRecord
from jaxserve.sim.traffic.trace_files.formats import MAX_JSON_LINES, MAX_TOKENS

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
"""Columns of the BurstGPT format, with times in seconds from any origin."""

_OUTCOMES = ("completed", "rejected", "cancelled", "failed")
_FIELDS = tuple(field.name for field in fields(RequestRecord))
_ENDLESS_UNIX_S = 1e11


@dataclass(frozen=True)
class Recording:
    """A trace, and counts of the dropped records."""

    csv: bytes
    """content of the trace file."""
    requests: int
    """requests in the trace."""
    duration_s: float
    """time from the first request to the last, s."""
    dropped: Mapping[str, int]
    """requests that are not in the trace, by reason."""
    cached_share: float | None = None
    """share of the prompt tokens found in a prefix cache; None if no engine reports it."""


def record(path: Path) -> Recording:
    """The completed requests in a file of ``jaxserve gateway --records``.

    Rows are in order of arrival by the wall clock; records are in order of their end. An incomplete
    line, as after a full disk, is dropped.

    Raises:
      InputError: the file cannot be read, a line is no record, a request appears twice, or no
        request was completed with its tokens counted.
    """
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    rows: list[tuple[float, int, int]] = []
    counted = cached = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    data = json.loads(line)
                except (ValueError, RecursionError):
                    dropped["unfinished line"] += 1
                    continue
                fields = JsonObject(data, where, _FIELDS)
                if fields.text("id") in seen:
                    raise InputError(f"{where}: request {fields['id']} is in the file twice")
                seen.add(fields["id"])
                reason, row = _row(fields)
                if reason:
                    dropped[reason] += 1
                else:
                    rows.append(row)
                    if fields.get("cached_tokens") is not None:
                        counted += row[1]
                        cached += min(fields.whole("cached_tokens", 0, MAX_TOKENS), row[1])
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if not rows:
        reasons = _listed(dropped) or "it is empty"
        raise InputError(f"{path} holds no completed request with its tokens counted ({reasons})")
    if len(rows) > MAX_JSON_LINES:
        raise InputError(f"{path} has {len(rows)} requests; at most {MAX_JSON_LINES} make a trace")
    rows.sort()
    start = rows[0][0]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((f"{time - start:.6f}", prompt, output) for time, prompt, output in rows)
    return Recording(
        text.getvalue().encode(),
        len(rows),
        rows[-1][0] - start,
        dict(dropped),
        cached / counted if counted else None,
    )


def summary(recording: Recording) -> str:
    """One sentence on the kept and the dropped records."""
    kept = f"{recording.requests} requests in {recording.duration_s:.1f} s"
    left_out = sum(recording.dropped.values())
    why = f" ({_listed(recording.dropped)})" if left_out else ""
    found = ""
    if recording.cached_share is not None:
        found = (
            f"; {recording.cached_share:.0%} of the prompt tokens were found in a prefix cache, "
            "which the trace cannot replay"
        )
    return f"{kept}; {left_out} left out{why}{found}"


def _row(fields: JsonObject) -> tuple[str, tuple[float, int, int]]:
    """The reason to drop a record, or an empty string; and its time, prompt and output."""
    nothing = (0.0, 0, 0)
    arrival_s = fields.number("arrival_unix_s", 0, _ENDLESS_UNIX_S)
    outcome = fields.one_of("outcome", _OUTCOMES)
    if outcome != "completed":
        return outcome, nothing
    tokens = [_tokens(fields, name) for name in ("prompt_tokens", "output_tokens")]
    if None in tokens:
        return "tokens not counted", nothing
    if 0 in tokens:
        return "no tokens", nothing
    if fields.flag("parallel"):
        return "several outputs", nothing
    prompt, output = (int(count or 0) for count in tokens)
    return "", (arrival_s, prompt, output)


def _tokens(fields: JsonObject, name: str) -> Any:
    return None if fields.get(name, 0) is None else fields.whole(name, 0, MAX_TOKENS)


def _listed(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(dropped.items()))
