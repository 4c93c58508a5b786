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
_LONGEST_S = 86_400.0


@dataclass(frozen=True)
class Slo:
    """Service level objective: the limits that a good request keeps."""

    ttft_s: float = math.inf
    """time to first token, s."""
    tpot_s: float = math.inf
    """time per output token after the first, s."""

    def met(self, ttft_s: float, tpot_s: float | None) -> bool:
        """Whether a completed request is good; one of a single token has no TPOT to miss."""
        return ttft_s <= self.ttft_s and (tpot_s is None or tpot_s <= self.tpot_s)


class Classes:
    """The classes that the operator named, beside ``default`` and ``other``.

    Requests name theirs in a header. An unknown name counts as ``other``, so that clients cannot
    make new ones.
    """

    def __init__(self, texts: Sequence[str] = ()) -> None:
        """Args: ``--slo`` arguments.

        Raises:
          InputError: one is not understood, or a class is given twice.
        """
        self.slos: dict[str, Slo] = {DEFAULT: Slo()}
        given: set[str] = set()
        for text in texts:
            name, slo = _parse(text)
            if name in given:
                raise InputError(f"--slo {name} is given twice; a class has one SLO")
            given.add(name)
            self.slos[name] = slo
        self.slos.setdefault(OTHER, Slo())
        self.names = tuple(self.slos)

    def name(self, asked: str | None) -> str:
        """The class of a request that asks for one, or for none."""
        if asked is None:
            return DEFAULT
        return asked if asked in self.slos else OTHER


def _parse(text: str) -> tuple[str, Slo]:
    name, values = assignments("--slo", text, ("ttft", "tpot"), "chat:ttft=0.5,tpot=0.05")
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise InputError(
            f"--slo {text!r} is not understood; the name of a class has 1 to 64 letters, digits, "
            "underscores, dots or hyphens"
        )
    limits: dict[str, float] = {}
    for field, value in values.items():
        limit_s = decimal(value)
        if isinstance(limit_s, str) or not 0.0 < limit_s <= _LONGEST_S:
            refuse(f"--slo {text!r}: {field}", value, f"above 0 and at most {_LONGEST_S:.0f} s")
        limits[f"{field}_s"] = limit_s
    return name, Slo(**limits)
