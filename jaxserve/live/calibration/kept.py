"""Measurements of a calibration in a file, so that a later call goes on from them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.live.calibration.steps import COLUMNS
from jaxserve.live.engine_client import TimedCompletion

Point = tuple[int, int, int]
"""Requests in flight, prompt tokens, and mean output tokens of a load."""
_COMPLETIONS = (
    "in_flight", "prompt", "output", "first_s", "last_s", "prompt_tokens", "output_tokens"
)  # fmt: skip


@dataclass(frozen=True)
class EngineFacts:
    """Description of a measured engine by itself; None for what it does not tell."""

    model: str
    """name of its model."""
    kv_pool_tokens: int | None
    """KV pool, tokens."""
    batch_cap: int | None
    """most running sequences."""
    token_budget: int | None
    """most tokens of an iteration."""
    tells_steps: bool
    """whether it has the plug-in, which tells the times of steps."""
    behind_gateway: bool
    """whether completions go through a gateway."""


@dataclass
class KeptMeasurements:
    """Measurements so far; ``write`` keeps them."""

    path: Path | None = None
    """file to write; None for none."""
    facts: EngineFacts | None = None
    """the engine; None before it is known."""
    completions: dict[Point, list[TimedCompletion]] = field(default_factory=dict)
    """counted completions of every point; times from their sending."""
    steps: list[tuple[float, ...]] = field(default_factory=list)
    """rows of ``COLUMNS``."""

    @classmethod
    def read(cls, path: Path) -> KeptMeasurements:
        """Measurements in a file; none if there is no file.

        Raises:
          InputError: the file does not hold measurements.
        """
        if not path.exists():
            return cls(path)
        where = f"measurements {path}"
        data = JsonObject(read_json(path, where), where)
        facts, steps = data.inside("facts"), data.inside("steps")
        table = _columns(data.inside("completions"), _COMPLETIONS)
        rows = _columns(steps, COLUMNS)
        kept = cls(path, steps=[tuple(row) for row in rows.tolist()])
        numbers = {
            name: None if facts.get(name) is None else facts.whole(name, 1)
            for name in ("kv_pool_tokens", "batch_cap", "token_budget")
        }
        flags = {name: facts.flag(name) for name in ("tells_steps", "behind_gateway")}
        kept.facts = EngineFacts(facts.text("model"), **numbers, **flags)
        for *point, first_s, last_s, prompt, output in table.tolist():
            in_flight, prompts, outputs = map(int, point)
            kept.completions.setdefault((in_flight, prompts, outputs), []).append(
                TimedCompletion(0.0, first_s, last_s, int(prompt), int(output))
            )
        return kept

    def begin(self, facts: EngineFacts) -> None:
        """Notes the engine.

        Raises:
          InputError: the measurements so far are of another engine.
        """
        if self.facts is not None and facts != self.facts:
            raise InputError(
                f"{self.path} has measurements of another engine or of other limits "
                f"({self.facts}, and now {facts}); remove it, or name another --out"
            )
        self.facts = facts

    def write(self) -> None:
        """Writes the file, if there is one to write."""
        if self.path is None or self.facts is None:
            return
        table = [
            (*point, first_s, last_s, one.prompt_tokens, one.output_tokens)
            for point, found in self.completions.items()
            for one in found
            for first_s, last_s in [(one.first_s - one.sent_s, one.last_s - one.sent_s)]
        ]
        content: dict[str, Any] = {
            "facts": asdict(self.facts),
            "completions": _by_column(table, _COMPLETIONS),
            "steps": _by_column(self.steps, COLUMNS),
        }
        write_atomic(self.path, json.dumps(content).encode())


def _by_column(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}


def _columns(data: JsonObject, names: tuple[str, ...]) -> np.ndarray:
    """float64[n, columns] of lists of equal length; raises InputError."""
    count = len(data.entries(names[0])) if data.get(names[0]) else 0
    return np.array([data.numbers(name, count, 0.0) for name in names]).T.reshape(-1, len(names))
