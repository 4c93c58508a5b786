"""Settings and knobs of the reference simulator."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from jaxserve.errors import InputError
from jaxserve.sim.acceptance import MAX_DEPTH


@dataclass(frozen=True)
class SchedulerSettings:
    """Properties of the serving engine that no knob changes.

    Attributes:
      chunk_budget: tokens that one iteration may process.
      block_tokens: tokens per KV block.
      watermark: share of the KV blocks that admission leaves free.
      prefix_caching: a preempted sequence finds what is left of its own KV when it comes back.
    """

    chunk_budget: int = 2048
    block_tokens: int = 16
    watermark: float = 0.0
    prefix_caching: bool = False

    def __post_init__(self) -> None:
        for name in ("chunk_budget", "block_tokens"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)!r}; 1 or more is allowed")
        if not 0.0 <= self.watermark < 1.0:
            raise InputError(f"watermark is {self.watermark!r}; 0 up to below 1 is allowed")


@dataclass(frozen=True)
class EngineKnobs:
    """What an operator sets on one GPU.

    Attributes:
      batch_cap: sequences that may run at once (vLLM's `max_num_seqs`).
      kv_capacity_tokens: KV pool of the GPU, tokens.
      speculation_depth: draft tokens verified per sequence and step, 0..8.
      tier: quantisation tier, 0..2.
      priority_routing: serve by (priority, arrival) instead of first come first served.
    """

    batch_cap: int
    kv_capacity_tokens: int
    speculation_depth: int = 0
    tier: int = 0
    priority_routing: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("batch_cap", 1, math.inf),
            ("kv_capacity_tokens", 1, math.inf),
            ("speculation_depth", 0, MAX_DEPTH),
            ("tier", 0, 2),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                allowed = f"{low} or more" if high == math.inf else f"{low} to {high}"
                raise InputError(f"{name} is {value!r}; {allowed} is allowed")


@dataclass(frozen=True)
class Knobs(EngineKnobs):
    """The operator's knobs of a deployment.

    Attributes:
      prefill_gpus: GPUs that only prefill; 0 = every GPU does both.
    """

    prefill_gpus: int = 0


@dataclass(frozen=True)
class ShiftedExponentialFrontEnd:
    """Delay between engine and client, part of TTFT: constant `fixed_s`, exponential tail of mean
    `tail_s`; none by default."""

    fixed_s: float = 0.0
    tail_s: float = 0.0

    def draw(self, rng: np.random.Generator) -> float:
        """Seconds for one request."""
        return self.fixed_s + self.tail_s * rng.standard_exponential()


@dataclass(frozen=True)
class ReferenceSettings:
    """What an operator can not change while serving.

    Attributes:
      num_gpus: engines.
      queue_capacity: requests that may wait in the whole deployment; later ones are rejected.
      restart_s: a GPU is away this long to reload weights in another tier.
      rerole_s: a GPU is away this long to become or cease to be a prefill GPU.
      oom_restart_s: a GPU is away this long after running out of memory.
      kv_bytes_per_token, link_bytes_per_s: KV handed from prefill to decode, and its link.
      front_end: delay between engine and client.
      scheduler: settings of every engine.
    """

    num_gpus: int = 1
    queue_capacity: int = 512
    restart_s: float = 8.0
    rerole_s: float = 3.0
    oom_restart_s: float = 20.0
    kv_bytes_per_token: float = 131072.0
    link_bytes_per_s: float = 450e9
    front_end: ShiftedExponentialFrontEnd = field(default_factory=ShiftedExponentialFrontEnd)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)

    def __post_init__(self) -> None:
        for name, low in (("num_gpus", 1), ("queue_capacity", 0)):
            if getattr(self, name) < low:
                raise InputError(f"{name} is {getattr(self, name)!r}; {low} or more is allowed")
        for name in ("restart_s", "rerole_s", "oom_restart_s", "kv_bytes_per_token"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(
                    f"{name} is {getattr(self, name)!r}; a finite number from 0 is allowed"
                )
        if not self.link_bytes_per_s > 0:
            raise InputError(
                f"link_bytes_per_s is {self.link_bytes_per_s!r}; a positive number is allowed"
            )
