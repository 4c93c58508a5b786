"""Settings and knobs of the reference simulator, and its interface to device memory."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from jaxserve import checks
from jaxserve.fields import MAX_DEPTH
from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.machine.hardware import EngineSettings
from jaxserve.sim.machine.memory import BLOCK_TOKENS, SequenceKv, check_prefix_caching


@dataclass(frozen=True)
class SchedulerSettings:
    """Properties of the serving engine that no knob changes."""

    token_budget: int = EngineSettings.token_budget
    """tokens that one iteration may process."""
    block_tokens: int = BLOCK_TOKENS
    """tokens per KV block."""
    watermark: float = 0.0
    """share of the KV blocks that admission leaves free."""
    prefix_caching: bool = False
    """full blocks are found again by prompts that begin alike, and by the sequence itself when it
    comes back from a preemption, until others have taken them."""
    depths: tuple[int, ...] = ()
    """draft tokens of each sequence after an iteration of 1, 2, ... sequences, the last for more,
    and no more than the knob (vLLM's ``num_speculative_tokens_per_batch_size``); empty for the
    knob's depth after every iteration."""
    sequence_kv: SequenceKv | None = None
    """KV that a sequence holds beside that of its tokens; None for layers of one kind."""

    def blocks(self, tokens: Any) -> Any:
        """Blocks that a sequence of ``tokens`` holds; a whole number, or int64[n] of several."""
        size = self.block_tokens
        own = -(-tokens // size)
        if self.sequence_kv is None:
            return own
        return own + np.ceil(self.sequence_kv.beside(tokens) / size).astype(np.int64)

    def __post_init__(self) -> None:
        checks.whole("token_budget", self.token_budget, 1)
        checks.whole("block_tokens", self.block_tokens, 1)
        check_prefix_caching(self.prefix_caching, self.sequence_kv)
        if not 0.0 <= self.watermark < 1.0:
            checks.refuse("watermark", self.watermark, "a number from 0 to below 1")
        for depth in set(self.depths):
            checks.whole("depths", depth, 0, MAX_DEPTH)

    def depth_after(self, sequences: int, most: int) -> int:
        """Draft tokens of each sequence after an iteration of ``sequences``, at most ``most``."""
        if not self.depths:
            return most
        return min(self.depths[max(min(sequences, len(self.depths)), 1) - 1], most)


@dataclass(frozen=True)
class GpuKnobs:
    """Knobs of one GPU."""

    batch_cap: int
    """sequences that may run at once (vLLM's ``max_num_seqs``)."""
    kv_capacity_tokens: int
    """KV pool of the GPU, tokens."""
    speculation_depth: int = 0
    """draft tokens verified per sequence and step, 0..8."""
    tier: int = 0
    """quantisation tier, 0..2."""
    priority_routing: bool = False
    """serve by (priority, arrival) instead of first come first served."""

    def __post_init__(self) -> None:
        checks.whole("batch_cap", self.batch_cap, 1)
        checks.whole("kv_capacity_tokens", self.kv_capacity_tokens, 1)
        checks.whole("speculation_depth", self.speculation_depth, 0, MAX_DEPTH)
        checks.whole("tier", self.tier, 0, 2)


@dataclass(frozen=True)
class Knobs(GpuKnobs):
    """The operator's knobs of a deployment."""

    prefill_gpus: int = 0
    """GPUs that only prefill; 0 = every GPU does both."""
    replicas: int | None = None
    """GPUs that are to serve, of a deployment with a fleet; None for all."""


@dataclass(frozen=True)
class ShiftedExponentialFrontEnd:
    """Delay between engine and client, part of TTFT: constant ``fixed_s``, exponential tail of mean
    ``tail_s``; none by default."""

    fixed_s: float = 0.0
    tail_s: float = 0.0

    def draw(self, rng: np.random.Generator) -> float:
        """Delay of one request, s."""
        return self.fixed_s + self.tail_s * rng.standard_exponential()


class Routing(enum.Enum):
    """Routing of requests to the engines that can serve them."""

    LEAST_LOADED = "least_loaded"
    """Requests wait in one queue until an engine has room, and go to the one with fewest tokens."""
    ROUND_ROBIN = "round_robin"
    """Requests go to one engine after the other when they arrive, whatever its load."""
    PREFIX_AFFINITY = "prefix_affinity"
    """Requests go, when they arrive, to the engine with the greatest matched / prompt - .5 load /
    greatest load: where most of the prompt is cached, unless that engine is busier."""


@dataclass(frozen=True)
class ReferenceSettings:
    """Settings that an operator cannot change while serving."""

    num_gpus: int = 1
    """engines of the deployment."""
    queue_capacity: int = EngineSettings.queue_capacity
    """requests that may wait in the whole deployment; later ones are rejected."""
    context_tokens: int | None = None
    """context length of the model: longer requests, prompt and output together, are rejected; None
    where it is not known."""
    concurrency: int | None = None
    """requests in flight at most, in a closed loop: the next one begins when the client has the end
    of another; None where requests come whatever is in flight."""
    restart_s: float = EngineSettings.restart_s
    """a GPU is away this long to reload weights in another tier."""
    rerole_s: float = EngineSettings.rerole_s
    """a GPU is away this long to become or cease to be a prefill GPU."""
    oom_restart_s: float = EngineSettings.oom_restart_s
    """a GPU is away this long after running out of memory."""
    kv_bytes_per_token: float = 131072.0
    """KV handed from prefill to decode."""
    link_bytes_per_s: float = 450e9
    """bandwidth of the link that it takes."""
    front_end: ShiftedExponentialFrontEnd = field(default_factory=ShiftedExponentialFrontEnd)
    """delay between engine and client."""
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    """settings of every engine."""
    routing: Routing = Routing.LEAST_LOADED
    """engine of the next request."""
    fleet: FleetSettings | None = None
    """start-up and draining of replicas; None where all serve all the time."""

    def __post_init__(self) -> None:
        checks.whole("num_gpus", self.num_gpus, 1)
        checks.whole("queue_capacity", self.queue_capacity, 0)
        for name in ("restart_s", "rerole_s", "oom_restart_s", "kv_bytes_per_token"):
            checks.number(name, getattr(self, name), 0)
        checks.positive("link_bytes_per_s", self.link_bytes_per_s)


class MemoryMeter(Protocol):
    """Device memory of an iteration."""

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
