"""A real control window in the simulator's terms: the same metrics, reward and observation.

``MEASURED`` lists source and error of every entry of the observation; the documentation shows it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.env import ServeEnv
from jaxserve.live.readings import ClassWindow, EngineState, LiveWindow, counted
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.spaces import OBSERVATION_FIELDS
from jaxserve.tasks.spec import TaskSpec
from jaxserve.types import ServeAction, ServeObservation, WindowMetrics


@dataclass(frozen=True)
class Source:
    """Source of an entry of the live observation."""

    kind: str
    """measured (by the gateway), scraped (from engines), derived (from both), or configured."""
    how: str
    error: str
    """largest error."""


_EXACT = "the network between client and gateway"
MEASURED: Mapping[str, Source] = {
    "queue_depth": Source(
        "derived",
        "requests that wait in the gateway and in the engines' own queues",
        "an engine counts at the end of a step; without its count, all requests without a first "
        "token count, requests in prefill included",
    ),
    "active_requests": Source(
        "derived", "requests in the gateway, minus the waiting requests", "as queue_depth"
    ),
    "kv_cache_occupancy": Source(
        "scraped",
        "mean over engines of the share of the KV budget in use, as in the simulator",
        "an instantaneous value; vLLM counts blocks that only cache prefixes as free; without the "
        "plug-in the budget is all blocks",
    ),
    "mean_prompt_length": Source(
        "derived",
        "arrivals by class, with the task's mean prompt of each class",
        "the difference between the task's lengths and the traffic's: `jaxserve record` measures "
        "the latter",
    ),
    "p50_ttft_ms": Source("measured", "quantile over all first tokens of the window", _EXACT),
    "p99_ttft_ms": Source("measured", "quantile over all first tokens of the window", _EXACT),
    "p50_itl_ms": Source(
        "measured",
        "time between two events with output",
        "an event with several tokens (speculation) counts as one step, as in the simulator",
    ),
    "mean_itl_ms": Source("measured", "time between two events with output", "as p50_itl_ms"),
    "throughput_tps": Source(
        "scraped",
        "rise of the engines' counter of generated tokens",
        "without the counter: tokens of the requests that ended",
    ),
    "slo_compliance_rate": Source(
        "measured",
        "share of the ended requests inside the objectives of their class",
        "requests that were not streamed are judged by their total time; without requests that "
        "cannot be judged, such as those whose client left early",
    ),
    "gpu_memory_used_gb": Source(
        "configured",
        "weights, workspace, draft model and KV pool of the calibrated deployment under the knobs "
        "in force, as in the simulator",
        "the memory of the window's largest step is missing",
    ),
    "estimated_cost_per_1k": Source(
        "derived",
        "price of the GPUs and energy from tokens, over the tokens of good requests",
        "energy: the model's error; price: as configured",
    ),
    "request_arrival_rate": Source("measured", "arrivals at the gateway", "none"),
    "spec_acceptance_rate": Source(
        "scraped",
        "rise of accepted over rise of proposed draft tokens",
        "0 if the engine has no such counters",
    ),
    "eviction_events": Source(
        "scraped", "rise of the engines' counter of preemptions", "0 without the counter"
    ),
    "step_index": Source(
        "derived",
        "windows since the controller started; starts again from 1 after an episode's length",
        "none",
    ),
    "priority_distribution": Source(
        "derived",
        "arrivals by class, with the task's priority of each class",
        "priorities that requests name themselves do not count",
    ),
    "slo_violation_rate": Source("measured", "1 - slo_compliance_rate", "as slo_compliance_rate"),
    "cost_so_far": Source(
        "derived",
        "sum over windows; starts again from 0 with step_index",
        "as estimated_cost_per_1k; windows without a reading are missing",
    ),
    "reconfiguring": Source(
        "derived",
        "share of the engines with unreadable metrics",
        "an engine that answers while it reloads counts as serving",
    ),
    "replicas_ready": Source(
        "scraped",
        "engines whose metrics can be read; of a fleet those of them that get new requests",
        "as reconfiguring",
    ),
    "replicas_starting": Source(
        "derived",
        "0 without a fleet; of a fleet the places in use whose engine does not answer",
        "an engine that hangs counts as starting",
    ),
}
assert MEASURED.keys() == OBSERVATION_FIELDS.keys()


@dataclass(frozen=True)
class Streams:
    """Map from the gateway's classes to the task's traffic classes."""

    names: tuple[str, ...]
    """names of the task's streams."""
    places: tuple[tuple[int, ...], ...]
    """indices of each stream's traffic classes, which share its traffic equally."""

    @classmethod
    def of(cls, spec: TaskSpec) -> Streams:
        """The streams of a task."""
        places, first = [], 0
        for stream in spec.streams:
            places.append(tuple(range(first, first + stream.bins)))
            first += stream.bins
        return cls(tuple(stream.name for stream in spec.streams), tuple(places))

    def strangers(self, window: LiveWindow) -> tuple[str, ...]:
        """Classes with traffic but without a stream of the name; they count as the first stream."""
        return tuple(
            name
            for name, counts in window.classes.items()
            if name not in self.names and sum(counts.arrivals)
        )

    def gather(self, window: LiveWindow) -> list[tuple[tuple[int, ...], ClassWindow]]:
        """The window of each stream, with the indices of its traffic classes."""
        found: dict[str, list[ClassWindow]] = {name: [] for name in self.names}
        for name, counts in window.classes.items():
            found[name if name in found else self.names[0]].append(counts)
        return list(zip(self.places, map(_joined, found.values()), strict=True))


def arrivals_by_tick(env: ServeEnv, streams: Streams, window: LiveWindow) -> np.ndarray:
    """float32[K, F]: arrivals by tick and traffic class; whole if a stream is one class."""
    counts = np.zeros((env.ticks, len(np.asarray(env.slo.ttft_s))), np.float32)
    for places, stream in streams.gather(window):
        if len(stream.arrivals) == env.ticks:
            counts[:, places] = np.asarray(stream.arrivals)[:, None] / len(places)
    return counts


def measure(
    env: ServeEnv,
    streams: Streams,
    window: LiveWindow,
    before: EngineState,
    after: EngineState,
    in_force: ServeAction,
) -> WindowMetrics:
    """The metrics of a window, with float32 leaves as from the simulators.

    Args:
      before, after: states of the engines at its start and end.
      in_force: knobs in force during the window.
    """
    slo_s = np.asarray(env.slo.ttft_s, np.float64)
    values = {name: np.zeros(len(slo_s)) for name in _BY_CLASS}
    times: list[float] = []
    queued = _queued_share(window, after)
    for places, stream in streams.gather(window):
        shares = np.full(len(places), 1.0 / len(places))
        place = list(places)
        values["arrivals"][place] = sum(stream.arrivals) * shares
        for name in ("good", "rejected", "first_tokens", "on_track"):
            values[name][place] = getattr(stream, name) * shares
        # Requests that cannot be judged must not count as missed.
        values["completed"][place] = stream.judged * shares
        values["waiting"][place] = queued * stream.waiting * shares
        values["running"][place] = (stream.running + (1.0 - queued) * stream.waiting) * shares
        values["overdue"][place] = _overdue(stream, slo_s[place[0]], window.seconds) * shares
        values["lost"][place] = stream.failed * shares
        values["ttft_met"][place] = sum(s <= slo_s[place[0]] for s in stream.ttft_s) * shares
        values["tpot_s"][place] = stream.tpot_mean_s or 0.0
        times += stream.ttft_s
    deployment = env.deployment.on_host()
    tokens = counted(before, after, "output_tokens")
    if tokens is None:
        tokens = float(sum(stream.output_tokens for stream in window.classes.values()))
    prompts = counted(before, after, "prompt_tokens") or 0.0
    drafted = counted(before, after, "drafted") or 0.0
    tier = int(in_force.quantization_tier)
    drafting = int(int(in_force.speculation_depth) > 0)
    energy_j = _energy_j(deployment, window, tokens + prompts, tier)
    scalars = dict(
        itl_s=window.itl_mean_s or 0.0,
        p50_itl_s=window.itl_p50_s or 0.0,
        p99_itl_s=window.itl_p99_s or 0.0,
        tokens=tokens,
        preemptions=counted(before, after, "preemptions") or 0.0,
        memory_gib=deployment.weights_gib[tier]
        + deployment.activation_base_gib
        + deployment.kv_pool_gib[tier, drafting]
        + drafting * deployment.draft_gib,
        energy_j=energy_j,
        cost_usd=deployment.cost_usd(window.seconds, energy_j),
        kv_occupancy=min(after.kv_use or 0.0, 1.0),
        acceptance=(counted(before, after, "accepted") or 0.0) / drafted if drafted else 0.0,
        capacity=after.up / after.count,
        oom=0.0,
        replicas_ready=after.up,
        replicas_starting=0.0,
        replicas_rented=after.count,
    )
    exceeded = (np.asarray(times)[None, :] > TTFT_EDGES_S[:, None]).sum(axis=1)
    return WindowMetrics(
        **{name: jnp.asarray(value, jnp.float32) for name, value in values.items()},
        **{name: jnp.asarray(value, jnp.float32) for name, value in scalars.items()},
        ttft_exceeded=jnp.asarray(exceeded, jnp.float32),
        regime=jnp.int32(0),
        tier=jnp.int32(tier),
        prefill_gpus=jnp.int32(0),
    )


def observe(
    env: ServeEnv,
    last: ServeObservation,
    metrics: WindowMetrics,
    window: LiveWindow | None,
    count: int,
) -> ServeObservation:
    """The observation as in the simulator, but with exact TTFT quantiles.

    Step and cost are those of ``ServeEnv.next_observation_without_end``.

    Args:
      last: the observation before.
      window: has the exact quantiles; without it, they come from ``metrics``.
      count: number of the window, from 1.
    """
    seen = _next_observation(env, last, metrics, jnp.int32(count))
    if window is None or window.ttft_p50_s is None or window.ttft_p99_s is None:
        return seen
    bound = OBSERVATION_FIELDS["p50_ttft_ms"].bound.high
    return dataclasses.replace(
        seen,
        p50_ttft_ms=jnp.float32(min(1000.0 * window.ttft_p50_s, bound)),
        p99_ttft_ms=jnp.float32(min(1000.0 * window.ttft_p99_s, bound)),
    )


_next_observation = jax.jit(ServeEnv.next_observation_without_end)


def _queued_share(window: LiveWindow, after: EngineState) -> float:
    """Share of the requests without a first token that no engine has admitted."""
    without_token = sum(counts.waiting for counts in window.classes.values())
    if after.waiting is None or not without_token:
        return 1.0
    return min((window.queued + after.waiting) / without_token, 1.0)


def _overdue(stream: ClassWindow, ttft_slo_s: float, seconds: float) -> int:
    """Lower bound on the waiting requests beyond their TTFT objective.

    Waiting requests in excess of the arrivals within the objective are overdue. The gateway shows
    no ages of requests in flight, so the bound is 0 if the objective is longer than the window.
    """
    if not stream.arrivals or ttft_slo_s > seconds:
        return 0
    slice_s = seconds / len(stream.arrivals)
    recent = stream.arrivals[-max(math.ceil(ttft_slo_s / slice_s), 1) :]
    return max(stream.waiting - sum(recent), 0)


def _energy_j(d: Deployment, window: LiveWindow, tokens: float, tier: int) -> float:
    """Energy of idle power, tokens, and one pass over the weights per step; power is limited."""
    steps = window.seconds / window.itl_mean_s if window.itl_mean_s else 0.0
    work_j = tokens * d.joule_per_token[tier]
    work_j += d.num_gpus * steps * d.joule_per_weight_pass[tier]
    return float(d.energy_j(window.seconds, work_j))


_BY_CLASS = (
    "arrivals",
    "completed",
    "good",
    "rejected",
    "lost",
    "waiting",
    "running",
    "overdue",
    "on_track",
    "first_tokens",
    "ttft_met",
    "tpot_s",
)


def _joined(classes: Sequence[ClassWindow]) -> ClassWindow:
    """Several classes as one; an empty class without any."""
    arrivals = itertools.zip_longest(*(one.arrivals for one in classes), fillvalue=0)
    tpot = [(one.tpot_mean_s, one.completed) for one in classes if one.tpot_mean_s is not None]
    weight = sum(count for _, count in tpot)
    sums = {
        field.name: sum(getattr(one, field.name) for one in classes)
        for field in dataclasses.fields(ClassWindow)
        if field.name not in ("arrivals", "ttft_s", "tpot_mean_s")
    }
    return ClassWindow(
        arrivals=tuple(map(sum, arrivals)),
        ttft_s=tuple(time_s for one in classes for time_s in one.ttft_s),
        tpot_mean_s=sum(s * count for s, count in tpot) / weight if weight else None,
        **sums,
    )
