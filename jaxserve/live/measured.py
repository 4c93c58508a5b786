"""A real control window in the simulator's terms: the same metrics, reward and observation.

``MEASURED`` says of every entry of the observation where it comes from and how far off it may be;
a page of the documentation is made from it.
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
    """Where an entry of the live observation comes from."""

    kind: str
    """measured (at the gateway), scraped (from engines), derived (from both), or configured."""
    how: str
    error: str
    """how far off it can be."""


_EXACT = "none but the way between client and gateway"
MEASURED: Mapping[str, Source] = {
    "queue_depth": Source(
        "derived",
        "requests that wait in the gateway and in the engines' own queues",
        "an engine counts at the end of a step; where it does not say, requests without a first "
        "token are counted, those in prefill included",
    ),
    "active_requests": Source(
        "derived", "requests in the gateway, less those that wait", "as queue_depth"
    ),
    "kv_cache_occupancy": Source(
        "scraped",
        "mean over engines of the share of the KV budget in use, as in the simulator",
        "of the moment it is read; blocks that only cache prefixes count as free in vLLM; without "
        "the plug-in the budget is all of the blocks",
    ),
    "mean_prompt_length": Source(
        "derived",
        "arrivals by class with the task's mean prompt of each",
        "as far as the task's lengths are those of the traffic: `jaxserve record` measures them",
    ),
    "p50_ttft_ms": Source("measured", "of every first token of the window", _EXACT),
    "p99_ttft_ms": Source("measured", "of every first token of the window", _EXACT),
    "p50_itl_ms": Source(
        "measured",
        "time between two events with output",
        "several tokens in one event, as with speculation, count as one step, as in the simulator",
    ),
    "mean_itl_ms": Source("measured", "time between two events with output", "likewise"),
    "throughput_tps": Source(
        "scraped",
        "rise of the engines' counter of generated tokens",
        "where an engine does not show it: tokens of the requests that ended",
    ),
    "slo_compliance_rate": Source(
        "measured",
        "requests that ended inside the objectives of their class",
        "requests that were not streamed or whose client left are left out",
    ),
    "gpu_memory_used_gb": Source(
        "configured",
        "weights, workspace, draft model and KV pool, as in the simulator, of the calibrated "
        "deployment under the knobs in force",
        "without what the largest step of the window takes",
    ),
    "estimated_cost_per_1k": Source(
        "derived",
        "price of the GPUs and energy from tokens, over tokens of requests in their objectives",
        "energy within the model's error; price as configured",
    ),
    "request_arrival_rate": Source("measured", "arrivals at the gateway", "none"),
    "spec_acceptance_rate": Source(
        "scraped",
        "rise of accepted over rise of proposed draft tokens",
        "0 where the engine shows no such counters",
    ),
    "eviction_events": Source(
        "scraped", "rise of the engines' counter of preemptions", "0 where it is not shown"
    ),
    "step_index": Source(
        "derived",
        "windows since the controller started, from 1 again after as many as an episode has",
        "none",
    ),
    "priority_distribution": Source(
        "derived",
        "arrivals by class with the task's priority of each",
        "a priority that a request names for itself is not counted",
    ),
    "slo_violation_rate": Source("measured", "1 - slo_compliance_rate", "likewise"),
    "cost_so_far": Source(
        "derived",
        "sum over windows, from 0 again where step_index begins anew",
        "as estimated_cost_per_1k; windows of which nothing is known are left out",
    ),
    "reconfiguring": Source(
        "derived",
        "share of the engines whose metrics could not be read",
        "an engine that reloads but answers counts as serving",
    ),
}
assert MEASURED.keys() == OBSERVATION_FIELDS.keys()


@dataclass(frozen=True)
class Streams:
    """Which classes of the gateway are which traffic classes of the task."""

    names: tuple[str, ...]
    """the task's streams."""
    places: tuple[tuple[int, ...], ...]
    """indices of each stream's traffic classes, which have equal shares of it."""

    @classmethod
    def of(cls, spec: TaskSpec) -> Streams:
        """Those of a task."""
        places, first = [], 0
        for stream in spec.streams:
            places.append(tuple(range(first, first + stream.bins)))
            first += stream.bins
        return cls(tuple(stream.name for stream in spec.streams), tuple(places))

    def strangers(self, window: LiveWindow) -> tuple[str, ...]:
        """Classes with traffic that no stream is named after; they count as the first stream."""
        return tuple(
            name
            for name, counts in window.classes.items()
            if name not in self.names and sum(counts.arrivals)
        )

    def gather(self, window: LiveWindow) -> list[tuple[tuple[int, ...], ClassWindow]]:
        """The window of each stream with the places of its traffic classes."""
        found: dict[str, list[ClassWindow]] = {name: [] for name in self.names}
        for name, counts in window.classes.items():
            found[name if name in found else self.names[0]].append(counts)
        return list(zip(self.places, map(_joined, found.values()), strict=True))


def arrivals_by_tick(env: ServeEnv, streams: Streams, window: LiveWindow) -> np.ndarray:
    """float32[K, F]: arrivals by tick and traffic class; whole where a stream is one class."""
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
    """The window's metrics, float32 leaves as the simulators give them.

    Args:
      before, after: what engines said at its start and end.
      in_force: the knobs that acted.
    """
    slo_s = np.asarray(env.slo.ttft_s, np.float64)
    values = {name: np.zeros(len(slo_s)) for name in _BY_CLASS}
    times: list[float] = []
    queued = _queued_share(window, after)
    for places, stream in streams.gather(window):
        shares = np.full(len(places), 1.0 / len(places))
        place = list(places)
        values["arrivals"][place] = sum(stream.arrivals) * shares
        for name in ("completed", "good", "rejected", "first_tokens", "on_track"):
            values[name][place] = getattr(stream, name) * shares
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
    """The observation as in the simulator, with the exact quantiles of the TTFT.

    Policies were trained on episodes, and operating has no end: after every ``env.horizon`` windows
    steps and costs begin anew, so that no feature leaves the range that they know. The step is
    never 0, where policies forget what they have seen.

    Args:
      window: where those are; without one, they come from ``metrics``.
      count: windows since the controller began, this one included.
    """
    seen = _observe(env, last, metrics, jnp.int32(count))
    if window is None or window.ttft_p50_s is None or window.ttft_p99_s is None:
        return seen
    bound = OBSERVATION_FIELDS["p50_ttft_ms"].bound.high
    return dataclasses.replace(
        seen,
        p50_ttft_ms=jnp.float32(min(1000.0 * window.ttft_p50_s, bound)),
        p99_ttft_ms=jnp.float32(min(1000.0 * window.ttft_p99_s, bound)),
    )


@jax.jit
def _observe(
    env: ServeEnv, last: ServeObservation, metrics: WindowMetrics, count: jax.Array
) -> ServeObservation:
    step = 1 + (count - 1) % env.horizon
    # By the last window that was seen: the first of an episode may have been missed.
    again = step <= last.step_index
    last = dataclasses.replace(last, cost_so_far=jnp.where(again, 0.0, last.cost_so_far))
    return env.next_observation(last, metrics, step)


def _queued_share(window: LiveWindow, after: EngineState) -> float:
    """The share of the requests without a first token that no engine has admitted."""
    without_token = sum(counts.waiting for counts in window.classes.values())
    if after.waiting is None or not without_token:
        return 1.0
    return min((window.queued + after.waiting) / without_token, 1.0)


def _overdue(stream: ClassWindow, ttft_slo_s: float, seconds: float) -> int:
    """The fewest requests without a first token that can have waited beyond their objective: as
    many as are more than arrived within it. A gateway says no more of requests in flight, so it is
    0 where the objective is longer than the window."""
    if not stream.arrivals or ttft_slo_s > seconds:
        return 0
    slice_s = seconds / len(stream.arrivals)
    recent = stream.arrivals[-max(math.ceil(ttft_slo_s / slice_s), 1) :]
    return max(stream.waiting - sum(recent), 0)


def _energy_j(d: Deployment, window: LiveWindow, tokens: float, tier: int) -> float:
    """Idle power, tokens and one pass over the weights each step, at most the power limit."""
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
    """Several classes as one; without any, one that nobody is in."""
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
