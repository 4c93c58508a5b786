"""Single requests in files of load generators, by the fields of ``data/formats.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.file_formats import FileFormat, find, recognise, recognise_as, refusal
from jaxserve.sim.traffic.trace_files.formats import MAX_TOKENS

_MAX_S = 1e12

Request = tuple[float, int, int, float, float]
"""Arrival (s), prompt and output tokens, TTFT (s), TPOT (s; NaN for one token)."""


def refuse_unread(name: str, first: Mapping[str, Any]) -> None:
    """Raises InputError where a file's first object is of a format without single requests."""
    found = recognise(first)
    if found is not None and not {"trace", "log"} & {*found.gives}:
        raise InputError(f"{name}: {refusal(first, 'log')}")


def tool_requests(
    name: str, objects: Iterable[Mapping[str, Any]], run: int | None, time_unit: str | None
) -> list[Request | None]:
    """Requests of a file, or of one of its runs; None for one that was not served.

    Args:
      name: of the file.
      objects: its JSON objects, of a format that declares ``requests``.
      run: number of the run, from 1 on.
      time_unit: that the user has named, which these files say themselves.

    Raises:
      InputError: there are several runs and none is named, or a request lacks a quantity.
    """
    rows = list(objects)
    found = recognise_as(rows[0], "log")
    if time_unit is not None:
        raise InputError(f"{name} has times of known units ({found.name}); leave --time-unit out")
    if not found.served:
        if run is not None:
            raise InputError(f"{name} holds single requests and no runs; leave --run out")
        return list(_requests(name, found, rows))
    runs = [each for whole in rows for each in _listed(whole, found.rows)]
    if run is None and len(runs) != 1:
        raise InputError(f"{name} holds {len(runs)} runs; say which (--run 1 to {len(runs)})")
    chosen = runs[checks.whole("run", 1 if run is None else run, 1, len(runs)) - 1]
    lost = [each for path in found.lost for each in _listed(chosen, path)]
    return [*_requests(name, found, _listed(chosen, found.served)), *(None for _ in lost)]


def _listed(run: Mapping[str, Any], path: str) -> list[Any]:
    value = find(run, path)
    return value if isinstance(value, list) else []


def _requests(
    name: str, found: FileFormat, rows: Sequence[Mapping[str, Any]]
) -> Iterator[Request | None]:
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
    return second * checks.number(place, value, 0, _MAX_S / second)
