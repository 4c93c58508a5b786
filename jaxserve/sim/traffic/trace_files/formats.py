"""Formats of recorded requests, and how a file tells which one it has.

Six public formats are read, as they are or compressed with gzip:

- ``azure``: CSV of the Azure LLM inference traces of 2023 and 2024, columns TIMESTAMP (date and
  time, up to nine fractional digits, with or without a UTC offset), ContextTokens, GeneratedTokens.
- ``burstgpt``: CSV of BurstGPT, columns Timestamp (seconds), Request tokens, Response tokens.
- ``mooncake``: JSON lines {"timestamp": ms, "input_length": ..., "output_length": ...}, and
  "hash_ids" of the blocks of 512 tokens that the prompt consists of.
- ``bailian``: the same with "chat_id", a timestamp in seconds, and blocks of 16 tokens.
- ``timed``: the same in seconds without "chat_id", as GuideLLM's ``trace_synthetic`` and the
  ``timed_trace`` of ``vllm bench serve`` are. Blocks of 16 tokens, or more than 1,000 requests per
  second if times were milliseconds, tell it from Mooncake's; otherwise the unit has to be named.
- ``timed_csv``: the same columns as CSV, which GuideLLM replays too. The unit has to be named.

A column of a CSV file named kind, in any case, or a field "kind" of JSON lines says which kind of
request a row is of: a text for every row, or for none. Rows must be in order of time. A row without
prompt or output tokens is a request that failed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from jaxserve.errors import InputError
from jaxserve.file_formats import refusal

MAX_TOKENS = 10_000_000
"""Most tokens that a prompt or an output may have."""
MAX_TRACE_ROWS = 300_000_000
"""Most requests of a trace; a file may have more, of which a part is taken."""
MAX_JSON_LINES = 50_000_000
"""Most lines of a file of JSON lines, which take a multiple of the memory."""
TIME_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of a file's times, and how many of them are a second."""
KIND = "kind"
"""Name of the column that tells a request's kind, in any case."""


class Layout(NamedTuple):
    """Names of the columns of a format, and the meaning of its clock."""

    name: str
    time: str
    prompt: str
    output: str
    unit: str | None = None
    """unit of the clock, one of ``TIME_UNITS``; None for calendar times."""
    block_tokens: int = 0
    """prompt tokens that a hash id stands for; 0 in CSV files."""

    @property
    def columns(self) -> tuple[str, str, str]:
        """Names of the columns of time, prompt and output."""
        return self.time, self.prompt, self.output

    @property
    def second(self) -> float:
        """Units of the clock in a second."""
        return 1.0 if self.unit is None else TIME_UNITS[self.unit]


_LENGTHS = ("timestamp", "input_length", "output_length")
LAYOUTS = {
    each.name: each
    for each in (
        Layout("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        Layout("mooncake", *_LENGTHS, "ms", 512),
        Layout("bailian", *_LENGTHS, "s", 16),
        Layout("timed", *_LENGTHS, "s", 16),
        Layout("burstgpt", "Timestamp", "Request tokens", "Response tokens", "s"),
        Layout("timed_csv", *_LENGTHS, "s"),
    )
}
"""Layouts by the name of the format."""
FORMATS = tuple(LAYOUTS)
"""Names of the formats."""
_CSV = tuple(each for each in LAYOUTS.values() if not each.block_tokens)


def layout_of_header(name: str, header: list[str]) -> Layout:
    """The CSV format whose columns a header shares most.

    Raises:
      InputError: the header shares none.
    """
    best = max(_CSV, key=lambda each: len(set(header).intersection(each.columns)))
    if not set(header).intersection(best.columns):
        raise InputError(f"{name}, line 1: {refusal(dict.fromkeys(header), 'trace')}")
    return best


def layout_of_json(name: str, line: bytes) -> Layout:
    """The format of JSON lines that begin with ``line``; Mooncake's stands for ``timed`` as well.

    Raises:
      InputError: the line has no field of a trace, or the file is one JSON array.
    """
    if line.startswith(b"["):
        raise InputError(
            f"{name} is a JSON array; a trace in JSON lines has one object in each line"
        )
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return LAYOUTS["mooncake"]  # the line's own error is the message
    if isinstance(row, dict) and not set(_LENGTHS) & set(row):
        raise InputError(f"{name}, line 1: {refusal(row, 'trace')}")
    return LAYOUTS["bailian" if "chat_id" in row else "mooncake"]
