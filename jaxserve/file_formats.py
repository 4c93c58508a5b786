"""Formats of files that other tools write: their marks, what they give, what they cannot tell.

``data/formats.json`` declares them, in the order in which they are tried. A format of load tests
also declares where a run has its quantities, and in which unit.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from jaxserve import checks
from jaxserve.datafiles import load_json
from jaxserve.errors import InputError

SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Units of times, in seconds."""
_RATES = {"per second": 1.0, "per minute": 1.0 / 60.0}
_TIMES = {
    **dict.fromkeys(("TPOT", "TTFT", "mean TTFT", "mean latency"), "ms"),
    **dict.fromkeys(("duration", "start"), "s"),
    "rate": "per second",
}
"""Units of times where a format does not declare another."""
GIVES = {
    "load test": "table fit, plan --load-test",
    "trace": "--trace of all commands, simulate",
    "log": "simulate, which compares with its latencies",
}
"""Kinds of data that a format may give, and the commands that read them."""
NEEDED = ("concurrency", "prompt length", "output length", "TPOT")
"""Quantities without which rows are no load test."""
_SHOWN = 12


@dataclass(frozen=True)
class FileFormat:
    """Declaration of a format. A path names a field, with dots between nested ones."""

    name: str
    written_by: str
    """tool, and its versions or options."""
    source: str
    """where the format is defined."""
    gives: tuple[str, ...]
    """some of ``GIVES``."""
    recognised_by: tuple[str, ...]
    """paths, of which the first object or row of a file has at least one."""
    cannot_tell: str
    """completes "it cannot tell"."""
    example: str
    """the least that a file has: a line of JSON, or a header."""
    note: str = ""
    """how the file is read, or which file to name instead."""
    like: str = ""
    """format whose quantities this one has."""
    rows: str = ""
    """path of the list of runs; empty where an object is one run."""
    quantities: Mapping[str, list[str]] = field(default_factory=dict)
    """paths of each quantity of a run; the first that a file has counts."""
    units: Mapping[str, str] = field(default_factory=dict)
    """units of times, where they are not milliseconds, and of starts and durations, where they are
    not seconds; ``in file`` where a field ``unit`` beside the value says it."""
    words: Mapping[str, Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """by quantity and path: words that stand for a value."""
    must_be: Mapping[str, list[str]] = field(default_factory=dict)
    """by path: texts of a plain engine that always has the same number of requests in flight."""
    no_drafts: Mapping[str, float] = field(default_factory=dict)
    """by path: largest value of an engine that verifies no drafts."""
    same: tuple[str, ...] = ()
    """paths that have one value in all runs of one engine."""
    requests: Mapping[str, list[str]] = field(default_factory=dict)
    """paths of each quantity of a single request; empty where the format has none, or a reader of
    its own."""
    served: str = ""
    """path in a run of the list of requests that were served; empty where an object is one."""
    lost: tuple[str, ...] = ()
    """paths in a run of the lists of requests that were not served."""
    lost_if: tuple[str, ...] = ()
    """paths in a request, of which one is set where it was not served."""
    nominal_lengths: bool = False
    """lengths are those asked for, and mean lengths follow from latencies and throughputs."""

    def unit_s(self, what: str, row: Mapping[str, Any], path: str, where: str) -> float:
        """Seconds of a quantity's unit, or per second of a rate's; 1 for what is neither.

        Raises:
          InputError: the file has to say the unit, and says none that is known.
        """
        if what not in _TIMES:
            return 1.0
        unit = self.units.get(what, _TIMES[what])
        if unit == "in file":
            place = f"{path.rpartition('.')[0]}.unit"
            unit = checks.one_of(f"{where}, column {place}", find(row, place), SECONDS)
        return (SECONDS | _RATES)[unit]

    @property
    def free(self) -> bool:
        """Whether columns have the names of several tools, of which the first counts."""
        return "columns" in (self.name, self.like)


@cache
def file_formats() -> tuple[FileFormat, ...]:
    """The formats of ``data/formats.json``, in the order in which they are tried."""
    declared = {each["name"]: each for each in load_json("formats.json")}
    shared = {
        each.name
        for each in fields(FileFormat)
        if each.name in ("quantities", "units", "no_drafts", "same")
    }
    found = []
    for each in declared.values():
        base = declared.get(each.get("like"), {})
        whole = {name: value for name, value in base.items() if name in shared} | each
        lists = ("gives", "recognised_by", "same", "lost", "lost_if")
        found.append(FileFormat(**whole | {name: tuple(whole.get(name, ())) for name in lists}))
    return tuple(found)


def normal(name: str) -> str:
    """Name of a column as formats declare it: lower case, with underscores."""
    return re.sub(r"[\s\-]+", "_", name.strip().lower())


def find(row: Any, path: str) -> Any:
    """Value under a path of an object, ``checks.MISSING`` where there is none.

    A list on the way stands for its only entry that counts in the results.
    """
    if isinstance(row, Mapping) and path in row:
        return row[path]
    value = row
    for key in path.split("."):
        if isinstance(value, list):
            counted = [each for each in value if not _excluded(each)]
            value = counted[0] if len(counted) == 1 else checks.MISSING
        if not isinstance(value, Mapping) or key not in value:
            return checks.MISSING
        value = value[key]
    return value


def _excluded(entry: Any) -> bool:
    return isinstance(entry, Mapping) and entry.get("exclude_from_results") is True


def recognise(row: Mapping[str, Any]) -> FileFormat | None:
    """Format of a file whose first object or row this is, with normal names."""
    for each in file_formats():
        if any(find(row, path) is not checks.MISSING for path in each.recognised_by):
            return each
    return None


def recognise_as(row: Mapping[str, Any], gives: str) -> FileFormat:
    """The format, where it gives what is asked for.

    Raises:
      InputError: the format is another, or unknown; see ``refusal``.
    """
    found = recognise(row)
    if found is None or gives not in found.gives:
        raise InputError(refusal(row, gives))
    return found


def refusal(row: Mapping[str, Any], gives: str) -> str:
    """Sentence on a file that does not give what is asked for: what the file is, or which format is
    the nearest, what is missing, and how that format looks."""
    found = recognise(row)
    candidates = [each for each in file_formats() if gives in each.gives]
    if found is not None:
        given = f"a {found.gives[0]} and no {gives}" if found.gives else f"no {gives}"
        others = ", ".join(each.name for each in candidates)
        return (
            f"it is a file of {found.written_by} ({found.name}), which is {given}, as it cannot "
            f"tell {found.cannot_tell}{found.note and '; '}{found.note}; formats of a {gives} are "
            f"{others}, see `jaxserve formats`"
        )
    names = sorted(row)[:_SHOWN]
    own = [each for each in candidates if not each.like]
    nearest = max(own, key=lambda each: _likeness(names, each))
    missing = [
        f"{what} ({' or '.join(paths[:3])})"
        for what, paths in nearest.quantities.items()
        if what in NEEDED and all(find(row, path) is checks.MISSING for path in paths)
    ] or [path for path in nearest.recognised_by if path not in row]
    return (
        f"it has {', '.join(names) or 'no fields'}, which is no known {gives}; the nearest is "
        f"{nearest.name} ({nearest.written_by}), of which {', '.join(missing)} "
        f"{'is' if len(missing) == 1 else 'are'} missing; it looks like {nearest.example}"
    )


def described() -> str:
    """A paragraph for each format: how it looks, what it gives, and what it cannot tell."""
    return "\n\n".join(
        f"{each.name}: {each.written_by}\n"
        + "".join(f"  {what}: {GIVES[what]}\n" for what in each.gives)
        + f"  cannot tell {each.cannot_tell}\n"
        + (f"  {each.note}\n" if each.note else "")
        + f"  {each.example}"
        for each in file_formats()
    )


def _likeness(names: Iterable[str], other: FileFormat) -> float:
    """Sum of the similarities of each name to the nearest that the format has."""
    paths = (path for paths in other.quantities.values() for path in paths)
    known = {path.split(".")[0] for path in (*other.recognised_by, *paths)}
    return sum(
        max((difflib.SequenceMatcher(None, name, each).ratio() for each in known), default=0.0)
        for name in names
    )
