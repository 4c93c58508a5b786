"""Descriptions of the fields of actions and observations, limits of both, and quantisation tiers.

``ServeAction`` and ``ServeObservation`` (``jaxserve.types``) carry it; bounds, grids, labels,
columns, schemas, prompts and the tables of the documentation are read from there.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

MAX_BATCH = 512
"""Largest batch cap: sequences per GPU that may run at once."""
MAX_GPUS = 8
"""Most GPUs of a deployment; a tensor-parallel group, which is a replica, counts as one."""
MAX_DEPTH = 8
"""Deepest speculation: draft tokens in a verify step, at most."""
MAX_CONTEXT_TOKENS = 131_072
"""Longest context, prompt and output together, whose times latency tables know."""
TOKEN_BUDGETS = (64, 65_536)
"""Least and most tokens that one engine iteration may process."""


class Tier(enum.IntEnum):
    """FP16 is bf16, INT8 is W8A8, INT4 is weight-only, where a deployment names no formats."""

    FP16 = 0
    INT8 = 1
    INT4 = 2


@dataclass(frozen=True)
class Bound:
    """Inclusive range of a field."""

    low: float
    high: float
    integer: bool = False

    @property
    def dtype(self) -> type[np.number]:
        """Type of arrays of such values."""
        return np.int32 if self.integer else np.float32

    def number(self, value: float) -> float:
        """``value`` as JSON has it: an int where the range is whole."""
        return round(value) if self.integer else value

    @property
    def allowed(self) -> str:
        """The range in words."""
        kind = "a whole number" if self.integer else "a number"
        return f"{kind} from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Knob:
    """A field of ``ServeAction``: int32 where its bound is whole, else float32."""

    bound: Bound
    default: float
    """value of an operator who does not turn the knob, and of a task that locks it."""
    grid: tuple[float, ...]
    """rising values that searches, learners and adapters choose from."""
    label: str
    """label in pictures and on the server's page."""
    meaning: str
    effect: str = ""
    """effect of turning the knob."""
    unit: str = ""
    names: tuple[str, ...] = ()
    """names of the values 0, 1 and so on; empty where they have none."""
    octaves: bool = False
    """whether differences count in octaves."""
    restarts: bool = False
    """whether GPUs are away for seconds when it is turned."""
    spared_gpus: int | None = None
    """GPUs of the deployment that its highest value leaves; None where it counts no GPUs."""
    optional: bool = False
    """whether an action may leave it out: it is newer than the actions that others keep."""

    @property
    def text(self) -> str:
        """Meaning, names of the values and effect in one line."""
        names = ", ".join(f"{value} {name}" for value, name in enumerate(self.names))
        return "; ".join(filter(None, (self.meaning, names, self.effect)))

    def highest(self, num_gpus: float) -> float:
        """The highest value that acts on a deployment."""
        if self.spared_gpus is None:
            return self.bound.high
        return min(self.bound.high, num_gpus - self.spared_gpus)


@dataclass(frozen=True)
class Entry:
    """A field of ``ServeObservation``: float32, from 0 to ``high``."""

    high: float
    unit: str
    meaning: str
    idle: float = 0.0
    """value before the first window, unless ``ServeEnv.reset`` knows better."""
    shape: tuple[int, ...] = ()

    @property
    def bound(self) -> Bound:
        """Range of the observation."""
        return Bound(0, self.high)


def knob(bound: Bound, **described: Any) -> Any:
    """A field of ``ServeAction``: the arguments of ``Knob``."""
    return dataclasses.field(metadata={"description": Knob(bound, **described)})


def entry(high: float, unit: str, meaning: str, **described: Any) -> Any:
    """A field of ``ServeObservation``: the arguments of ``Entry``."""
    return dataclasses.field(metadata={"description": Entry(high, unit, meaning, **described)})


def descriptions(kind: type) -> dict[str, Any]:
    """The descriptions of a dataclass's fields by their names, in order."""
    return {field.name: field.metadata["description"] for field in dataclasses.fields(kind)}
