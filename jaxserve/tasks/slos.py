"""Objectives of a user's own, for the kinds of requests that his recorded trace tells apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.traffic.traces import Trace
from jaxserve.tasks.spec import LAST_PRIORITY, TPOT_SLO_S, TTFT_SLO_S

SLO_EXAMPLE = "chat:ttft=0.5,tpot=0.05"
"""Form of the objectives of a kind on the command line."""


@dataclass(frozen=True)
class KindSlo:
    """Service level objective of one kind of request."""

    ttft_s: float
    """limit on TTFT, s."""
    tpot_s: float
    """limit on TPOT, s."""
    priority: int | None = None
    """group, 0 = served first, at most 2; None leaves it as the task has it."""

    def __post_init__(self) -> None:
        """Raises InputError where a number is out of range, as milliseconds usually are."""
        checks.seconds("ttft_s", self.ttft_s, *TTFT_SLO_S)
        checks.seconds("tpot_s", self.tpot_s, *TPOT_SLO_S)
        if self.priority is not None:
            checks.whole("priority", self.priority, 0, LAST_PRIORITY)


def parse_slo(text: str, option: str = "--slo") -> tuple[str, KindSlo]:
    """Reads ``KIND:ttft=0.5,tpot=0.05``, with ``,priority=0`` or without.

    Returns:
      the kind and its objectives.

    Raises:
      InputError: the text is not of this form, leaves out an objective, or has a number that is out
        of range.
    """
    kind, values = checks.assignments(option, text, ("ttft", "tpot", "priority"), SLO_EXAMPLE)
    where = f"{option} {text!r:.120}"
    missing = [name for name in ("ttft", "tpot") if name not in values]
    if missing:
        raise InputError(f"{where} has no {' and '.join(missing)}; it must be like {SLO_EXAMPLE}")
    try:
        priority = values.get("priority")
        return kind, KindSlo(
            checks.decimal(values["ttft"]),
            checks.decimal(values["tpot"]),
            None if priority is None else checks.digits("priority", priority, 0, LAST_PRIORITY),
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def check_slos(slos: Mapping[str, KindSlo], trace: Trace) -> None:
    """Checks that every kind of a trace has objectives, and that there are no others.

    Raises:
      InputError: a kind has none, or objectives are of no kind or no ``KindSlo``.
    """
    if not isinstance(slos, Mapping):
        checks.refuse("slos", slos, "a mapping from kinds of requests to KindSlo")
    for kind, slo in slos.items():
        if not isinstance(slo, KindSlo):
            checks.refuse(f"slos[{kind!r:.80}]", slo, "a KindSlo")
    if trace.kind is None:
        raise InputError(
            f"slos has objectives of {_listed(slos)}, but the trace does not say of which kind its "
            "requests are; add a column named kind to it"
        )
    unknown = [kind for kind in slos if kind not in trace.kinds]
    if unknown:
        raise InputError(
            f"slos has objectives of {_listed(unknown)}; the kinds of the trace are "
            f"{_listed(trace.kinds)}"
        )
    missing = [kind for kind in trace.kinds if kind not in slos]
    if missing:
        raise InputError(
            f"slos has no objectives of {_listed(missing)}; every kind of the trace must have them"
        )


def _listed(kinds: Iterable[str]) -> str:
    return ", ".join(map(repr, kinds))
