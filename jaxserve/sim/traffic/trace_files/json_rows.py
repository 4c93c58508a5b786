"""Rows of the formats in JSON lines."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.traffic.request_kinds import KIND_RULE
from jaxserve.sim.traffic.trace_files.formats import KIND, MAX_JSON_LINES, MAX_TOKENS, Layout
from jaxserve.sim.traffic.trace_files.rows import KindTexts, Rows
from jaxserve.sim.traffic.trace_files.text import TextBlock

_LATEST = 1e19
"""Latest time in any unit: nanoseconds since 1970 have 19 digits."""


def json_rows(name: str, blocks: Iterable[TextBlock], layout: Layout) -> tuple[Rows, KindTexts]:
    """All rows of a file, of which each line is an object, and the texts of their kinds.

    Raises:
      InputError: a line is no object, or a field is wrong; the message names file, line and field.
    """
    times, prompts, outputs = array("d"), array("i"), array("i")
    ids: list[Any] = []
    kinds: dict[str, int] = {}
    kind = array("i")
    for block in blocks:
        for line, text in enumerate(block.data.split(b"\n"), start=block.first_line):
            if len(times) == MAX_JSON_LINES:
                raise InputError(f"{name} has more than {MAX_JSON_LINES:,} lines; cut it first")
            row = _row(f"{name}, line {line}", text)
            times.append(row.number(layout.time, 0, _LATEST))
            prompts.append(_tokens(row, layout.prompt))
            outputs.append(_tokens(row, layout.output))
            ids.append(_ids(row.get("hash_ids")))
            kind.append(kinds.setdefault(_kind(row), len(kinds)))
    texts = KindTexts(name, KIND)
    places = texts.places(list(kinds), np.array(kind), 1)
    return Rows(np.array(times), np.array(prompts), np.array(outputs), 1, places, ids), texts


def _row(where: str, text: bytes) -> checks.JsonObject:
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: a number too long or nesting too deep") from None
    return checks.JsonObject(row, where)


def _tokens(row: checks.JsonObject, key: str) -> int:
    value = row.get(key, checks.MISSING)
    whole = isinstance(value, float) and value.is_integer()
    return checks.whole(row.name(key), int(value) if whole else value, 0, MAX_TOKENS)


def _ids(listed: Any) -> Any:
    """Ids of blocks, as small as they can be kept; empty where there are none."""
    if not isinstance(listed, list):
        return ()
    try:
        return array("q", listed)
    except (TypeError, OverflowError):
        return listed


def _kind(row: checks.JsonObject) -> str:
    """The kind of a row, empty where the row has none."""
    value = row.get(KIND)
    if value is not None and not isinstance(value, str):
        checks.refuse(f"{row.where}, column {KIND}", value, KIND_RULE)
    return (value or "").strip()
