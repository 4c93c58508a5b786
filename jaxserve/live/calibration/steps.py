"""Steps of an engine with the plug-in jaxserve-vllm: loads and times."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.live.engine_client import EngineClient

COLUMNS = (
    "seconds",
    "decode_seqs",
    "decode_tokens",
    "kv_tokens",
    "prompt_tokens",
    "pairs",
    "depth",
)  # fmt: skip
"""Used columns of the plug-in."""

_EVERY_S = 2.0  # in which fewer steps end than the 8192 that the plug-in keeps
_WIDTH = 1.4
"""Similar steps have all loads within about this factor."""
_FEWEST_ALIKE = 3


@dataclass(frozen=True)
class Steps:
    """Steps of an engine; float64[n] each."""

    seconds: NDArray[np.float64]
    """duration: from the end of the step before, if requests were left then."""
    decode_seqs: NDArray[np.float64]
    """decoding sequences."""
    decode_tokens: NDArray[np.float64]
    """tokens of the decoding sequences, drafts to verify included."""
    kv_tokens: NDArray[np.float64]
    """KV tokens that the decoding sequences read."""
    prompt_tokens: NDArray[np.float64]
    """prompt tokens."""
    pairs: NDArray[np.float64]
    """pairs of query and key in the prompts' attention."""
    depth: NDArray[np.float64]
    """drafted tokens per sequence."""

    @classmethod
    def of(cls, rows: Sequence[tuple[float, ...]]) -> Steps:
        """Steps from rows of ``COLUMNS``."""
        return cls(*np.array(rows, float).reshape(-1, len(COLUMNS)).T)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def tokens(self) -> NDArray[np.float64]:
        """All tokens of a step."""
        return self.decode_tokens + self.prompt_tokens

    def typical(self) -> Steps:
        """The step with the median time of each group of at least 3 similar steps.

        The median excludes pauses of the host, and frequent loads weigh no more than others.
        """
        loads = (self.decode_seqs, self.tokens, self.kv_tokens, self.pairs)
        rounded = [np.round(np.log1p(load) / np.log(_WIDTH)) for load in loads]
        _, group = np.unique(np.stack([*rounded, self.depth], axis=1), axis=0, return_inverse=True)
        order = np.lexsort((self.seconds, group.ravel()))
        counts = np.bincount(group.ravel())
        median = order[np.cumsum(counts) - counts + (counts - 1) // 2]
        chosen = median[counts >= _FEWEST_ALIKE]
        return Steps(*(getattr(self, name)[chosen] for name in COLUMNS))


class StepReader:
    """Collects the steps of an engine from its creation on."""

    def __init__(self, engine: EngineClient, rows: list[tuple[float, ...]]) -> None:
        """Args: the engine, and the list to which rows of ``COLUMNS`` are added."""
        self._engine = engine
        self._after = 0
        self._rows = rows
        self._lock = asyncio.Lock()

    @classmethod
    async def of(cls, engine: EngineClient, rows: list[tuple[float, ...]]) -> StepReader | None:
        """A reader; None if the engine has no plug-in."""
        answer = await engine.plug_in("steps?after=0")
        if answer is None:
            return None
        reader = cls(engine, [])
        reader._take(answer)  # steps before its creation
        reader._rows = rows
        return reader

    async def read_on(self) -> None:
        """Reads until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self.read()

    async def read(self) -> None:
        """Reads the steps since the last reading."""
        async with self._lock:
            self._take(await self._engine.plug_in(f"steps?after={self._after}") or {})

    def _take(self, answer: Mapping[str, Any]) -> None:
        trace = checks.JsonObject(answer, "the plug-in's steps")
        header = trace.get("columns", [])
        missing = [name for name in ("step", *COLUMNS) if name not in header]
        if missing:
            checks.refuse("the plug-in's columns", header, f"with {missing[0]}")
        places = [header.index(name) for name in COLUMNS]
        for row in trace.get("rows", []):
            self._after = max(self._after, int(row[header.index("step")]))
            values = tuple(float(row[place]) for place in places)
            if values[0] > 0:
                self._rows.append(values)
