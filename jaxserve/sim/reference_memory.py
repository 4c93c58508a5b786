"""Device memory of the reference simulator's iterations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from jaxserve.sim.hardware import EngineSettings, Gpu, LlmModel
from jaxserve.sim.memory import activation_bytes, draft_bytes, kv_bytes_per_token, weights_bytes


class MemoryMeter(Protocol):
    """Anything that knows how much device memory an iteration takes."""

    @property
    def device_bytes(self) -> float:
        """Memory of one GPU; an iteration that needs more crashes the engine."""
        ...

    def used_bytes(
        self,
        *,
        kv_capacity_tokens: int,
        tokens: int,
        logits_rows: int,
        speculation_depth: int,
        tier: int,
    ) -> float:
        """Bytes in use on one GPU during an iteration, the whole KV pool included."""
        ...


@dataclass(frozen=True)
class ModelMemory:
    """Weights, draft, KV pool and activations of `model` on one `gpu`.

    Attributes:
      gpu, model: what runs where.
      tensor_parallel: GPUs that share every layer.
      engine: its `runtime_bytes` are always in use.
    """

    gpu: Gpu
    model: LlmModel
    tensor_parallel: int = 1
    engine: EngineSettings = field(default_factory=EngineSettings)

    @property
    def device_bytes(self) -> float:
        """Memory of one GPU, bytes."""
        return self.gpu.memory_bytes

    def used_bytes(
        self,
        *,
        kv_capacity_tokens: int,
        tokens: int,
        logits_rows: int,
        speculation_depth: int,
        tier: int,
    ) -> float:
        """Bytes in use during an iteration; the KV pool counts as a whole."""
        speculating = speculation_depth > 0
        per_token = kv_bytes_per_token(self.model, speculating, self.tensor_parallel)
        return (
            weights_bytes(self.model, tier, self.tensor_parallel)
            + self.engine.runtime_bytes
            + (draft_bytes(self.model, self.tensor_parallel) if speculating else 0.0)
            + kv_capacity_tokens * per_token
            + activation_bytes(self.model, tokens, logits_rows, self.tensor_parallel)
        )
