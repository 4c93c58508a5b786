"""The steps of an engine under the plug-in jaxserve-vllm: what each computed, and its time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
"""What is used of the plug-in's columns."""

_EVERY_S = 2.0  # the plug-in keeps 8192 steps
_WIDTH = 1.4
"""Steps are alike where all loads are within about this factor."""
_FEWEST_ALIKE = 3


@dataclass(frozen=True)
class Steps:
    """Steps of an engine; float64 arrays of one length."""

    seconds: NDArray[np.float64]
    """from the end of the step before, where requests were left then."""
    decode_seqs: NDArray[np.float64]
    """decoding sequences."""
    decode_tokens: NDArray[np.float64]
    """their tokens, drafts to verify included."""
    kv_tokens: NDArray[np.float64]
    """KV tokens that they read."""
    prompt_tokens: NDArray[np.float64]
    """prompt tokens."""
    pairs: NDArray[np.float64]
    """pairs of query and key in the prompts' attention."""
    depth: NDArray[np.float64]
    """drafted tokens for each sequence."""

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def tokens(self) -> NDArray[np.float64]:
        """All tokens."""
        return self.decode_tokens + self.prompt_tokens

    def typical(self) -> Steps:
        """Of steps that are alike the one with the median time, where there are several: a pause of
        the host is in few of them, and frequent ones count no more than others."""
        loads = (self.decode_seqs, self.tokens, self.kv_tokens, self.pairs)
        rounded = [np.round(np.log1p(load) / np.log(_WIDTH)) for load in loads]
        _, group = np.unique(np.stack([*rounded, self.depth], axis=1), axis=0, return_inverse=True)
        order = np.lexsort((self.seconds, group.ravel()))
        counts = np.bincount(group.ravel())
        median = order[np.cumsum(counts) - counts + (counts - 1) // 2]
        chosen = median[counts >= _FEWEST_ALIKE]
        return Steps(*(getattr(self, name)[chosen] for name in COLUMNS))


class StepReader:
    """Collects the steps from when it was made on."""

    def __init__(self, engine: EngineClient, after: int) -> None:
        self._engine = engine
        self._after = after
        self._rows: list[tuple[float, ...]] = []

    @classmethod
    async def of(cls, engine: EngineClient) -> StepReader | None:
        """A reader; None where the engine has no plug-in that tells its steps."""
        answer = await engine.plug_in("steps?after=0")
        if answer is None:
            return None
        reader = cls(engine, 0)
        reader._take(answer)
        reader._rows.clear()
        return reader

    async def read_on(self) -> None:
        """Reads on until it is cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            await self._read()

    async def all(self) -> Steps:
        """All steps until now."""
        await self._read()
        values = np.array(self._rows, float).reshape(-1, len(COLUMNS))
        return Steps(*values.T)

    async def _read(self) -> None:
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
