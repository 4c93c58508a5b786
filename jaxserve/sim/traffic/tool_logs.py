"""Single requests in files of load generators, by the fields of ``data/formats.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.file_formats import FileFormat, find
from jaxserve.sim.traffic.trace_files import MAX_TOKENS

MAX_S = 1e12
"""Longest time that a log may have, seconds."""


def chosen_requests(
    name: str, found: FileFormat, objects: Sequence[Mapping[str, Any]], run: int | None
) -> list[tuple[float, int, int, float, float] | None]:
    """Requests of a file, or of one of its runs; None for one that was not served.

    Args:
      name: of the file.
      found: its format, which declares ``requests``.
      objects: the file's JSON objects.
      run: number of the run, from 1 on.

    Returns:
      arrival (s), prompt and output tokens, TTFT (s), TPOT (s; NaN for one token) of each.

    Raises:
      InputError: there are several runs and none is named, or a request lacks a quantity.
    """
    if not found.served:
        if run is not None:
            raise InputError(f"{name} holds single requests and no runs; leave --run out")
        return list(_requests(name, found, objects))
    runs = [each for whole in objects for each in find(whole, found.rows) or ()]
    if run is None and len(runs) != 1:
        raise InputError(f"{name} holds {len(runs)} runs; say which (--run 1 to {len(runs)})")
    chosen = runs[checks.whole("run", run or 1, 1, len(runs)) - 1]
    lost = [each for path in found.lost for each in _listed(chosen, path)]
    return [*_requests(name, found, _listed(chosen, found.served)), *(None for _ in lost)]


def _listed(run: Mapping[str, Any], path: str) -> list[Any]:
    value = find(run, path)
    return value if isinstance(value, list) else []


def _requests(
    name: str, found: FileFormat, rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[float, int, int, float, float] | None]:
    for number, row in enumerate(rows, 1):
        if any(find(row, path) not in (None, False, checks.MISSING) for path in found.lost_if):
            yield None
            continue
        where = f"{name}, request {number}"
        values = {what: _value(found, row, what, where) for what in found.requests}
        output = int(values["output length"])
        yield (
            values["start"],
            int(values["prompt length"]),
            output,
            values["TTFT"],
            values["TPOT"] if output > 1 else math.nan,
        )


def _value(found: FileFormat, row: Mapping[str, Any], what: str, where: str) -> float:
    """A quantity of a request: whole for lengths, in seconds for times; NaN for a TPOT that is
    not there, as that of one token."""
    paths = found.requests[what]
    path = next((path for path in paths if find(row, path) is not checks.MISSING), paths[0])
    value, place = find(row, path), f"{where}: {path}"
    if what in ("prompt length", "output length"):
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return checks.whole(place, whole, 1, MAX_TOKENS)
    if what == "TPOT" and value in (None, checks.MISSING):
        return math.nan
    second = found.unit_s(what, row, path, where)
    return second * checks.number(place, value, 0, MAX_S / second)
