"""Classes of requests, each with its objectives: ``chat:ttft=0.5,tpot=0.05``."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxserve.checks import refuse
from jaxserve.errors import InputError

DEFAULT = "default"
OTHER = "other"
_LIMIT = r"(?:ttft|tpot)=[^,=]+"


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
    found = re.fullmatch(rf"([A-Za-z0-9_.-]{{1,64}}):({_LIMIT}(?:,{_LIMIT})?)", text)
    if found is None:
        raise InputError(
            f"--slo {text!r} is not understood; it must be like chat:ttft=0.5,tpot=0.05"
        )
    limits: dict[str, float] = {}
    for part in found[2].split(","):
        name, _, value = part.partition("=")
        try:
            limits[f"{name}_s"] = float(value)
        except ValueError:
            limits[f"{name}_s"] = math.nan
        if not 0.0 < limits[f"{name}_s"] <= 86_400.0:
            refuse(f"--slo {text!r}: {name}", value, "above 0 and at most 86400 s")
    return found[1], Slo(**limits)
