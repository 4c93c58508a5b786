"""The pytrees that cross module boundaries; every field with its unit.

Shapes are those of a single environment. Under ``jax.vmap`` every field gains leading axes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Self

import jax

from jaxserve.fields import (
    MAX_BATCH,
    MAX_CONTEXT_TOKENS,
    MAX_DEPTH,
    MAX_GPUS,
    Bound,
    Tier,
    entry,
    knob,
)

PRIORITY_GROUPS = 3
"""Number of priority groups of requests, 0 the highest."""


class Replaceable:
    """Mixin of frozen dataclasses that policies and wrappers change: ``replace`` returns a copy."""

    def replace(self, **changes: Any) -> Self:
        """``dataclasses.replace`` as a method."""
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ServeAction(Replaceable):
    """The knobs, held for one control window.

    Inside jit out-of-range values are clipped and reals rounded; outer boundaries reject them
    (``jaxserve.spaces.validate_action``).
    """

    batch_cap: jax.Array = knob(
        Bound(1, MAX_BATCH, integer=True),
        default=32,
        grid=(1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, MAX_BATCH),
        label="batch cap",
        meaning="sequences per GPU that may run at once (vLLM's max_num_seqs)",
        effect="more of them raise throughput and slow tokens down",
        unit="sequences",
        octaves=True,
    )
    kv_budget_fraction: jax.Array = knob(
        Bound(0.1, 1.0),
        default=1.0,
        grid=(0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
        label="KV budget",
        meaning="share of the KV blocks that sequences may use",
        effect="a smaller one preempts sequences that no longer fit",
        unit="share",
    )
    speculation_depth: jax.Array = knob(
        Bound(0, MAX_DEPTH, integer=True),
        default=0,
        grid=tuple(range(MAX_DEPTH + 1)),
        label="speculation depth",
        meaning="draft tokens verified per step, 0 is off",
        effect="lowers latency where drafts are accepted, and costs compute",
        unit="tokens",
    )
    quantization_tier: jax.Array = knob(
        Bound(0, len(Tier) - 1, integer=True),
        default=0,
        grid=tuple(map(int, Tier)),
        label="tier",
        meaning="number format of the weights (INT8 is W8A8, INT4 is weight-only)",
        effect="a change reloads weights and costs capacity",
        names=tuple(Tier.__members__),
        restarts=True,
    )
    prefill_decode_split: jax.Array = knob(
        Bound(0, 7, integer=True),
        default=0,
        grid=tuple(range(8)),
        label="prefill GPUs",
        meaning="GPUs that only prefill, 0 is colocated; at least one GPU decodes",
        effect="a change re-roles GPUs and costs capacity",
        unit="GPUs",
        restarts=True,
        spared_gpus=1,
    )
    priority_routing: jax.Array = knob(
        Bound(0, 1, integer=True),
        default=0,
        grid=(0, 1),
        label="priority routing",
        meaning="serve higher priority groups first, otherwise first come first served",
        names=("off", "on"),
    )
    replicas: jax.Array = knob(
        Bound(0, MAX_GPUS, integer=True),
        default=0,
        grid=tuple(range(MAX_GPUS + 1)),
        label="replicas",
        meaning="replicas that are wanted, 0 is all",
        effect="more are paid at once and serve after their start-up, fewer drain first",
        unit="replicas",
        spared_gpus=0,
        optional=True,
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ServeObservation(Replaceable):
    """Observation at the end of a control window, as an operator's dashboard shows it.

    Always finite and inside ``jaxserve.spaces.OBSERVATION_BOUNDS``. Names are those of earlier
    projects, whatever their ``_gb`` says: memory is in GiB.
    """

    queue_depth: jax.Array = entry(
        4096, "requests", "waiting for their first token (preempted ones included)"
    )
    active_requests: jax.Array = entry(4096, "requests", "decoding now")
    kv_cache_occupancy: jax.Array = entry(1, "share", "reserved KV blocks in use")
    mean_prompt_length: jax.Array = entry(
        MAX_CONTEXT_TOKENS,
        "tokens",
        "mean prompt of the window's arrivals (last known when there were none)",
    )
    p50_ttft_ms: jax.Array = entry(
        200_000, "ms", "median time to first token, over the first tokens of the window"
    )
    p99_ttft_ms: jax.Array = entry(
        200_000, "ms", "99th percentile of the time to first token, over the same ones"
    )
    p50_itl_ms: jax.Array = entry(
        60_000, "ms", "inter-token latency: median time between a sequence's decode steps"
    )
    mean_itl_ms: jax.Array = entry(60_000, "ms", "mean time between a sequence's decode steps")
    throughput_tps: jax.Array = entry(1_000_000, "tokens/s", "output of the window")
    slo_compliance_rate: jax.Array = entry(
        1,
        "share",
        "requests ending in the window (completed, rejected, lost) that met all SLOs",
        idle=1.0,
    )
    gpu_memory_used_gb: jax.Array = entry(1024, "GiB", "peak memory of one GPU over the window")
    estimated_cost_per_1k: jax.Array = entry(
        1000, "US dollars", "cost of 1,000 output tokens of requests that met their SLOs (capped)"
    )
    request_arrival_rate: jax.Array = entry(10_000, "requests/s", "arrivals over the window")
    spec_acceptance_rate: jax.Array = entry(
        1, "share", "accepted draft tokens of those proposed; 0 when speculation is off"
    )
    eviction_events: jax.Array = entry(
        100_000, "sequences", "preempted in the window (their KV is recomputed)"
    )
    step_index: jax.Array = entry(1_000_000, "windows", "finished in this episode")
    priority_distribution: jax.Array = entry(
        1,
        "share",
        "the window's arrivals by priority group, highest first",
        shape=(PRIORITY_GROUPS,),
    )
    slo_violation_rate: jax.Array = entry(1, "share", "1 - slo_compliance_rate")
    cost_so_far: jax.Array = entry(1_000_000, "US dollars", "spent in this episode")
    reconfiguring: jax.Array = entry(
        1, "share", "capacity of the deployment lost to a running switch or restart"
    )
    replicas_ready: jax.Array = entry(MAX_GPUS, "replicas", "serving now")
    replicas_starting: jax.Array = entry(MAX_GPUS, "replicas", "starting now")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WindowMetrics(Replaceable):
    """Metrics of a control window. Counts are (fractional) requests; all float32.

    Conservation: ``arrivals = completed + rejected + lost + change of (waiting + running)``.
    """

    arrivals: jax.Array
    """[F] requests that arrived, by traffic class."""
    completed: jax.Array
    """[F] requests that finished."""
    good: jax.Array
    """[F] requests that finished and met their TTFT and TPOT SLOs."""
    rejected: jax.Array
    """[F] requests turned away by the full queue."""
    lost: jax.Array
    """[F] admitted requests that were dropped: by an out-of-memory restart or, in the reference
    simulator, because their context outgrew the KV pool."""
    waiting: jax.Array
    """[F] requests waiting at the end of the window, preempted ones included."""
    running: jax.Array
    """[F] requests decoding at the end of the window."""
    overdue: jax.Array
    """[F] waiting or running requests that have missed an objective whatever comes: their first
    token is late or, in the reference simulator, so are their tokens. Windows of real engines count
    the fewest that there can be."""
    on_track: jax.Array
    """[F] requests in service whose first token came in time and whose mean time per output token
    so far is inside its limit. Gateways of real engines do not measure it and say 0."""
    first_tokens: jax.Array
    """[F] requests that got their first token."""
    ttft_met: jax.Array
    """[F] of those, the ones inside the TTFT SLO."""
    ttft_exceeded: jax.Array
    """[E] first tokens later than each of ``jaxserve.sim.fast.latency.TTFT_EDGES_S``."""
    tpot_s: jax.Array
    """[F] mean time per output token of the requests that finished, s."""
    itl_s: jax.Array
    """mean inter-token latency over the window, s."""
    p50_itl_s: jax.Array
    """median inter-token latency over the window, s."""
    p99_itl_s: jax.Array
    """99th percentile of the inter-token latency, s; not observed, and 0 where a real engine was
    measured."""
    tokens: jax.Array
    """output tokens produced."""
    preemptions: jax.Array
    """sequences whose KV was evicted."""
    memory_gib: jax.Array
    """peak memory of one GPU, GiB."""
    energy_j: jax.Array
    """energy of the deployment, J."""
    cost_usd: jax.Array
    """GPU time and energy, US dollars."""
    kv_occupancy: jax.Array
    """share of reserved KV blocks in use at the end of the window."""
    acceptance: jax.Array
    """accepted / proposed draft tokens, 0 when speculation is off."""
    capacity: jax.Array
    """share of the GPUs that served, averaged over the window."""
    oom: jax.Array
    """1 if a GPU ran out of memory in the window and restarts, else 0. In the fast simulator all do
    so together, at the end of the window."""
    regime: jax.Array
    """int32, the workload's hidden regime (for plots and the oracle; never observed)."""
    tier: jax.Array
    """int32, quantisation tier in force in the window, for most of it where it changed inside."""
    prefill_gpus: jax.Array
    """int32, GPUs that only prefilled in the window, likewise; 0 = colocated."""
    replicas_ready: jax.Array
    """replicas that serve at the end of the window; all of a deployment without a fleet."""
    replicas_starting: jax.Array
    """replicas that start then."""
    replicas_rented: jax.Array
    """replicas paid for, averaged over the window: serving, starting and draining ones."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RewardParts(Replaceable):
    """The reward and its terms, each in units of the task's expected arrival value per window."""

    throughput: jax.Array
    """value of all completed requests."""
    latency: jax.Array
    """value of requests whose first token came late, <= 0 (weight 0 by default)."""
    slo: jax.Array
    """value lost by completed requests that missed an SLO, <= 0."""
    cost: jax.Array
    """money for GPUs and energy, <= 0."""
    memory: jax.Array
    """memory beyond the limit, <= 0."""
    total: jax.Array
    """sum of all terms."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TimeStep(Replaceable):
    """Results of ``ServeEnv.reset`` and ``ServeEnv.step`` beside the state."""

    observation: ServeObservation
    reward: jax.Array
    """float32; 0 at reset."""
    terminated: jax.Array
    """bool, an unrecoverable end; this environment has none, so always False."""
    truncated: jax.Array
    """bool, the horizon was reached. The reward has credited the requests that are on track, so
    that a learner need not bootstrap."""
    metrics: WindowMetrics
    parts: RewardParts
