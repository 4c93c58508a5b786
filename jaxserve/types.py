"""The pytrees that cross module boundaries; every field with its unit.

Shapes are those of a single environment. Under ``jax.vmap`` every field gains leading axes.
"""

from __future__ import annotations

import flax.struct
import jax


@flax.struct.dataclass
class ServeAction:
    """The six knobs, held for one control window.

    Inside jit out-of-range values are clipped and reals rounded; outer boundaries reject them
    (``jaxserve.spaces.validate_action``).
    """

    batch_cap: jax.Array
    """int32, sequences per GPU that may run at once (vLLM's ``max_num_seqs``), 1..512."""
    kv_budget_fraction: jax.Array
    """float32, share of the memory left for KV blocks that is reserved for them, 0.1..1.0."""
    speculation_depth: jax.Array
    """int32, draft tokens verified per step, 0 (off)..8."""
    quantization_tier: jax.Array
    """int32, 0 = FP16, 1 = INT8 (W8A8), 2 = INT4 (weight only). A change reloads weights."""
    prefill_decode_split: jax.Array
    """int32, GPUs that only prefill; 0 = colocated. A change re-roles GPUs."""
    priority_routing: jax.Array
    """int32, 1 serves higher priority groups first, 0 is first come first served."""


@flax.struct.dataclass
class ServeObservation:
    """What an operator's dashboard shows at the end of a control window.

    All float32 scalars except ``priority_distribution``; always finite and inside
    ``jaxserve.spaces.OBSERVATION_BOUNDS``.
    """

    queue_depth: jax.Array
    """requests waiting for their first token (preempted ones included)."""
    active_requests: jax.Array
    """requests decoding now."""
    kv_cache_occupancy: jax.Array
    """share of the reserved KV blocks in use, 0..1."""
    mean_prompt_length: jax.Array
    """tokens, over the window's arrivals (last known value when there were none)."""
    p50_ttft_ms: jax.Array
    """median time to first token of requests whose first token came in the window, ms."""
    p99_ttft_ms: jax.Array
    """99th percentile of the same, ms."""
    p50_itl_ms: jax.Array
    """inter-token latency: mean time between a sequence's decode steps over the window, ms."""
    throughput_tps: jax.Array
    """output tokens per second."""
    slo_compliance_rate: jax.Array
    """share of the requests ending in the window (completed, rejected, lost) that met all SLOs."""
    gpu_memory_used_gb: jax.Array
    """peak memory of one GPU over the window, GiB."""
    estimated_cost_per_1k: jax.Array
    """US dollars per 1,000 output tokens of requests that met their SLOs (capped at the bound)."""
    request_arrival_rate: jax.Array
    """arrivals per second over the window."""
    spec_acceptance_rate: jax.Array
    """accepted draft tokens / proposed draft tokens; 0 when speculation is off."""
    eviction_events: jax.Array
    """sequences preempted in the window (their KV is recomputed)."""
    step_index: jax.Array
    """windows finished in this episode."""
    priority_distribution: jax.Array
    """float32[3], share of the window's arrivals in each priority group, highest first."""
    slo_violation_rate: jax.Array
    """1 - ``slo_compliance_rate`` when anything ended in the window, else 0."""
    cost_so_far: jax.Array
    """US dollars spent in this episode."""
    reconfiguring: jax.Array
    """share of the deployment's capacity lost to a running switch or restart, 0..1."""


@flax.struct.dataclass
class WindowMetrics:
    """What happened in one control window. Counts are (fractional) requests; all float32.

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
    """[F] running requests lost to an out-of-memory restart."""
    waiting: jax.Array
    """[F] requests waiting at the end of the window, preempted ones included."""
    running: jax.Array
    """[F] requests decoding at the end of the window."""
    first_tokens: jax.Array
    """[F] requests that got their first token."""
    ttft_met: jax.Array
    """[F] of those, the ones inside the TTFT SLO."""
    ttft_exceeded: jax.Array
    """[E] first tokens later than each of ``jaxserve.sim.latency.TTFT_EDGES_S``."""
    tpot_s: jax.Array
    """[F] mean time per output token of the requests that finished, s."""
    itl_s: jax.Array
    """mean inter-token latency over the window, s."""
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
    """1 if the window ended in an out-of-memory restart."""
    regime: jax.Array
    """int32, the workload's hidden regime (for plots and the oracle; never observed)."""
    tier: jax.Array
    """int32, quantisation tier that was active at the end of the window."""
    prefill_gpus: jax.Array
    """int32, prefill/decode split that was active at the end of the window."""


@flax.struct.dataclass
class RewardParts:
    """The reward and its terms, each in units of the task's expected arrival value per window."""

    throughput: jax.Array
    """value of all completed requests."""
    latency: jax.Array
    """value of requests whose first token came late, <= 0 (weight 0 by default)."""
    slo: jax.Array
    """value lost by completed requests that missed an SLO, <= 0."""
    cost: jax.Array
    """money, <= 0."""
    memory: jax.Array
    """memory beyond the limit, <= 0."""
    total: jax.Array
    """their sum."""


@flax.struct.dataclass
class TimeStep:
    """What ``ServeEnv.reset`` and ``ServeEnv.step`` return beside the state."""

    observation: ServeObservation
    reward: jax.Array
    """float32; 0 at reset."""
    terminated: jax.Array
    """bool, an unrecoverable end; this environment has none, so always False."""
    truncated: jax.Array
    """bool, the horizon was reached: learners bootstrap through it."""
    metrics: WindowMetrics
    parts: RewardParts
