"""Interface of the reference simulator to device memory."""

from __future__ import annotations

from typing import Protocol


class MemoryMeter(Protocol):
    """Anything that knows how much device memory an iteration takes."""

    @property
    def device_bytes(self) -> float:
        """Memory of one GPU; an iteration that needs more crashes the engine."""
        ...

    def used_bytes(
        self,
        *,
        tokens: int,
        logits_rows: int,
        speculation_depth: int,
        tier: int,
    ) -> float:
        """Bytes in use on one GPU during an iteration, the whole KV pool included."""
        ...
