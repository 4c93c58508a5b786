"""Classes of requests, each with its objectives: ``chat:ttft=0.5,tpot=0.05``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxserve.checks import assignments, decimal, refuse
from jaxserve.errors import InputError

DEFAULT = "default"
OTHER = "other"
_MAX_LIMIT_S = 86_400.0


@dataclass(frozen=True)
class LatencyObjectives:
    """Service level objective of a class: limits of a good request."""

    ttft_s: float = math.inf
    """time to first token, s."""
    tpot_s: float = math.inf
    """time per output token after the first, s."""

    def met(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Whether a completed request is good; an output of one token has no TPOT."""
        return ttft_s <= self.ttft_s and (tpot_s is None or tpot_s <= self.tpot_s)

    def met_in_total(self, total_s: float, tokens: int | None) -> bool | None:
        """Whether a completed request without events is good.

        Args:
          total_s: time from arrival to the last byte, s.
          tokens: tokens of its one output; None if they are unknown or were several outputs.

        Returns:
          whether a request at both limits would have taken as long, ``ttft_s + (tokens - 1)
          tpot_s``; None where that time cannot be told.
        """
        if total_s <= self.ttft_s:
            return True
        if tokens is None or math.isinf(self.tpot_s):
            return None
        return total_s <= self.ttft_s + max(tokens - 1, 0) * self.tpot_s


class RequestClasses:
    """Classes of requests: the operator's, ``default`` and ``other``.

    A request names its class in a header. An unknown name counts as ``other``, so that clients
    cannot create classes.
    """

    def __init__(self, texts: Sequence[str] = ()) -> None:
        """Args: ``--slo`` arguments.

        Raises:
          InputError: an argument is malformed, or a class is given twice.
        """
        self.slos: dict[str, LatencyObjectives] = {DEFAULT: LatencyObjectives()}
        given: set[str] = set()
        for text in texts:
            name, slo = _parse(text)
            if name in given:
                raise InputError(f"--slo {name} is given twice; a class has one SLO")
            given.add(name)
            self.slos[name] = slo
        self.slos.setdefault(OTHER, LatencyObjectives())
        self.names = tuple(self.slos)

    def name(self, asked: str | None) -> str:
        """Class of a request by the value of its header; None is no header."""
        if asked is None:
            return DEFAULT
        return asked if asked in self.slos else OTHER


def _parse(text: str) -> tuple[str, LatencyObjectives]:
    name, values = assignments("--slo", text, ("ttft", "tpot"), "chat:ttft=0.5,tpot=0.05")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise InputError(
            f"--slo {text!r} is not understood; the name of a class has 1 to 64 letters, digits, "
            "underscores, dots or hyphens"
        )
    limits: dict[str, float] = {}
    for field, value in values.items():
        limit_s = decimal(value)
        if isinstance(limit_s, str) or not 0.0 < limit_s <= _MAX_LIMIT_S:
            refuse(f"--slo {text!r}: {field}", value, f"above 0 and at most {_MAX_LIMIT_S:.0f} s")
        limits[f"{field}_s"] = limit_s
    return name, LatencyObjectives(**limits)
