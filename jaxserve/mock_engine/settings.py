"""Settings of a mock engine, with vLLM's option names as aliases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from jaxserve import checks
from jaxserve.fields import MAX_DEPTH, Tier
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.sim.machine.hardware import EngineSettings

_WHOLE: Mapping[str, tuple[int, float]] = {
    "port": (0, 65535),
    "tensor_parallel": (1, 64),
    "tier": (0, len(Tier) - 1),
    "max_model_len": (2, 2**24),
    "batch_cap": (1, 65536),
    "token_budget": (1, 2**20),
    "speculation_depth": (0, MAX_DEPTH),
    "mean_output_tokens": (1, 2**24),
    "seed": (0, 2**63),
}
_NUMBERS: Mapping[str, tuple[float, float]] = {
    "memory_utilization": (0.01, 1.0),
    "speed": (0.001, 1000.0),
}
"""Range of each number."""


def _name(metavar: str, *vllm: str) -> Any:
    """An argument with vLLM's names as aliases."""
    return tyro.conf.arg(metavar=metavar, aliases=[f"--{name}" for name in vllm])


@dataclass(frozen=True)
class MockEngineSettings:
    """Settings on the command line."""

    model: Annotated[str, _name("NAME")]
    """Model, for example llama-3.1-8b."""
    hardware: Annotated[str, _name("NAME")]
    """GPU, for example h100-sxm-80gb, or a JSON file of your own."""
    host: str = "127.0.0.1"
    """Address to listen at."""
    port: int = 8000
    """Port to listen at; 0 takes a free one."""
    served_model_name: Annotated[str | None, _name("NAME")] = None
    """Model name in requests; default is that of --model."""
    tensor_parallel: Annotated[int, _name("INT", "tensor-parallel-size")] = 1
    """GPUs that share every layer."""
    tier: int = 0
    """Precision of the weights: 0 = FP16, 1 = INT8, 2 = INT4."""
    max_model_len: int = 32_768
    """Most tokens of prompt and output together."""
    batch_cap: Annotated[int, _name("INT", "max-num-seqs")] = 256
    """Most sequences that run at once, and maximum of the knob batch_cap."""
    token_budget: Annotated[int, _name("INT", "max-num-batched-tokens")] = (
        EngineSettings.token_budget
    )
    """Most tokens of one step, and maximum of the knob token_budget."""
    memory_utilization: Annotated[float, _name("FLOAT", "gpu-memory-utilization")] = (
        EngineSettings.memory_utilization
    )
    """Share of the GPU's memory for weights, activations and KV blocks."""
    kv_blocks: Annotated[int | None, _name("INT", "num-gpu-blocks-override")] = None
    """KV blocks of 16 tokens; default is as many as fit into the GPU's memory."""
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """Serve by arrival, or by priority and arrival; the knob priority_routing needs priority."""
    speculation_depth: int = 0
    """Draft tokens per sequence and step, and maximum of the knob speculation_depth."""
    acceptance: Annotated[str, _name("DATASET/METHOD")] = "sharegpt/eagle"
    """Source of the acceptance rates: a dataset, with eagle or ngram drafts."""
    mean_output_tokens: int = 256
    """Mean length of outputs that end by themselves, tokens."""
    speed: float = 1.0
    """Speed-up of time over the GPU's."""
    seed: int = 0
    """Seed of outputs, accepted drafts and front-end delays."""

    def check(self) -> None:
        """Raises InputError if a value is out of range or unknown."""
        for name, (low, high) in _WHOLE.items():
            checks.whole(_option(name), getattr(self, name), low, high)
        for name, (low, high) in _NUMBERS.items():
            checks.number(_option(name), getattr(self, name), low, high)
        if self.kv_blocks is not None:
            checks.whole("--kv-blocks", self.kv_blocks, 1)
        tokens_per_step(self.acceptance)

    @property
    def served_name(self) -> str:
        """Model name in requests."""
        return self.served_model_name or self.model


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
