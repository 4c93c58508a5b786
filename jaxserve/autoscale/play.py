"""Rules played on recorded demand in the fast simulator, many settings at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve.arrays.batching import add_up
from jaxserve.autoscale.history import Fleetwide, Reading
from jaxserve.autoscale.rules import RULES
from jaxserve.autoscale.scaling_rule import RuleMemory, first_memory, kept, parameters
from jaxserve.env import ServeEnv
from jaxserve.sim.fast.fleet import init_fleet
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.sim.fast.state import SimState, init_sim
from jaxserve.sim.fast.window import advance_window
from jaxserve.sim.traffic.workload import Arrivals
from jaxserve.types import ServeAction, WindowMetrics

STATIC = "static"
"""Name of a fleet that is never scaled, whose one number is its replicas."""
KINDS = (STATIC, *RULES)
"""Kinds of lanes: a static fleet and every rule."""
MOST_PARAMETERS = max(len(parameters(rule)) for rule in RULES.values())
TTFT_BUCKETS_S = (
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30,
    45, 60, 120, 180, 240, 300, 360, 480, 600,
)  # fmt: skip
"""Upper bounds of llm-d's histogram of TTFT, s (llm-d/llm-d-router, GeneralLatencyBuckets)."""
TPOT_BUCKETS_S = (
    0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6,
    0.8, 1, 1.5, 2, 3, 4.5, 6,
)  # fmt: skip
"""The same of TPOT (llm-d/llm-d-router, tpotBuckets)."""
FEW_LANES, LANES = 8, 128
"""Settings that are played side by side, and a smaller number for few of them; there is a compiled
program for each number."""
CHUNK_WINDOWS = 120
"""Windows that a call plays, between which progress is shown."""


@dataclass(frozen=True)
class RuleSetting:
    """A setting to play: a kind and its numbers in the order of the rule's parameters."""

    kind: str
    values: tuple[float, ...]
    start_s: float | None = None
    """start-up time of every replica; None for those of the fleet."""

    @classmethod
    def default(cls, kind: str) -> RuleSetting:
        """A rule with the values of its source."""
        return cls(kind, tuple(found.default for found in parameters(RULES[kind]).values()))

    @property
    def numbers(self) -> NDArray[np.float32]:
        """float32[MOST_PARAMETERS], the values, and zeros behind them."""
        padded = np.zeros(MOST_PARAMETERS, np.float32)
        padded[: len(self.values)] = self.values
        return padded

    def serving(self, initial: int) -> int:
        """Replicas that serve at the start: ``initial``, or all of a static fleet."""
        return round(self.values[0]) if self.kind == STATIC else initial


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FleetWindows:
    """Sums of a lane over the windows of a block; float32 [..., blocks] each."""

    seconds: jax.Array
    """length of the block."""
    ended: jax.Array
    """requests that completed, were rejected or lost."""
    good: jax.Array
    """requests that met both objectives."""
    rented_s: jax.Array
    """seconds of replicas that were paid for."""
    cost_usd: jax.Array
    """US dollars of GPUs and electricity."""
    changes: jax.Array
    """changes of the number of replicas that are wanted."""
    missed_s: jax.Array
    """seconds of windows in which less than the target share met its objectives."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Settings:
    """Lanes as arrays: kind int32[P], numbers float32[P, MOST_PARAMETERS], shortest and longest
    start-up float32[P, 2]."""

    kind: jax.Array
    values: jax.Array
    start_s: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Carry:
    sim: SimState
    memory: RuleMemory
    reading: Reading
    latencies: Latencies


def wanted_by(
    fleet: Fleetwide, kind: jax.Array, values: jax.Array, memory: RuleMemory, reading: Reading
) -> tuple[jax.Array, RuleMemory]:
    """Replicas that a lane wants, float32, and its next memory.

    Args:
      kind: int32, index into ``KINDS``.
      values: float32[MOST_PARAMETERS], numbers of the lane.
    """

    def static(memory: RuleMemory) -> tuple[jax.Array, RuleMemory]:
        return kept(memory, fleet.clip(values[0]))

    def of(rule: type) -> Callable[[RuleMemory], tuple[jax.Array, RuleMemory]]:
        numbers = values[: len(parameters(rule))]
        return lambda memory: rule(*numbers).want(fleet, memory, reading)

    return jax.lax.switch(kind, [static, *map(of, RULES.values())], memory)


def first_reading(serving: float | jax.Array) -> Reading:
    """Reading of an idle fleet."""
    idle: dict[str, Any] = dict.fromkeys(Reading.__dataclass_fields__, jnp.float32(0.0))
    return Reading(**idle | {"serving": jnp.asarray(serving, jnp.float32)})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Latencies:
    """Latencies of the last minute's windows, the newest first."""

    exceeded: jax.Array
    """float32[N, E], first tokens later than each edge."""
    first_tokens: jax.Array
    """float32[N]"""
    completed: jax.Array
    """float32[N, F]"""
    tpot_s: jax.Array
    """float32[N, F], mean time per output token of each class."""


def no_latencies(class_count: int, window_s: float) -> Latencies:
    """Latencies before any request."""
    count = max(round(60.0 / window_s), 1)
    by_class = jnp.zeros((count, class_count))
    return Latencies(jnp.zeros((count, len(TTFT_EDGES_S))), jnp.zeros(count), by_class, by_class)


def read_window(
    latencies: Latencies,
    metrics: WindowMetrics,
    prompt_tokens: jax.Array,
    window_s: float,
) -> tuple[Reading, Latencies]:
    """Reading at the end of a window, and the last minute's latencies with it.

    Args:
      latencies: latencies of the windows before.
      metrics: metrics of the window.
      prompt_tokens: float32[F], mean prompt of each class.
      window_s: seconds of the window.
    """
    newest = Latencies(
        metrics.ttft_exceeded, add_up(metrics.first_tokens), metrics.completed, metrics.tpot_s
    )
    latencies = jax.tree.map(
        lambda new, old: jnp.concatenate([new[None], old[:-1]]), newest, latencies
    )
    first = jnp.sum(latencies.first_tokens)
    late = jnp.sum(latencies.exceeded, axis=0) / jnp.maximum(first, 1e-9)
    edges = jnp.log(jnp.asarray(TTFT_BUCKETS_S))
    ttft_above = jnp.interp(edges, jnp.log(jnp.asarray(TTFT_EDGES_S)), late, left=1.0)
    done, tpot_s = latencies.completed.ravel(), latencies.tpot_s.ravel()
    above = tpot_s[None, :] > jnp.asarray(TPOT_BUCKETS_S)[:, None]
    ended = jnp.sum(done)
    tpot_above = jnp.sum(jnp.where(above, done, 0.0), axis=1) / jnp.maximum(ended, 1e-9)
    reading = Reading(
        waiting=add_up(metrics.waiting),
        running=add_up(metrics.running),
        kv_usage=metrics.kv_occupancy,
        waiting_tokens=add_up(metrics.waiting * prompt_tokens),
        arrivals_rps=add_up(metrics.arrivals) / window_s,
        ttft_p90_s=jnp.where(first > 0.5, histogram_quantile(TTFT_BUCKETS_S, ttft_above), 0.0),
        tpot_p90_s=jnp.where(ended > 0.5, histogram_quantile(TPOT_BUCKETS_S, tpot_above), 0.0),
        coming_wait_s=add_up(metrics.waiting) * window_s / jnp.maximum(newest.first_tokens, 1.0),
        serving=metrics.replicas_ready,
        starting=metrics.replicas_starting,
    )
    return reading, latencies


def histogram_quantile(
    buckets: Sequence[float], above: jax.Array, quantile: float = 0.9
) -> jax.Array:
    """Quantile as Prometheus tells it of a histogram: between two bounds the samples are spread
    evenly, and beyond the last bound the answer is that bound.

    Latencies that lie close together are told apart no better than by their bucket: all of 24 ms
    in the bucket from 20 to 40 ms have a 90th percentile of 38 ms. Rules act on that figure.

    Args:
      buckets: rising upper bounds.
      above: float32[len(buckets)], share of the samples above each bound.
    """
    upper = jnp.asarray(buckets, jnp.float32)
    lower = jnp.concatenate([jnp.zeros(1), upper[:-1]])
    before = jnp.concatenate([jnp.ones(1), above[:-1]])
    inside = (before > 1.0 - quantile) & (above <= 1.0 - quantile)
    place = (before - (1.0 - quantile)) / jnp.maximum(before - above, 1e-9)
    found = jnp.sum(jnp.where(inside, lower + (upper - lower) * jnp.clip(place, 0.0, 1.0), 0.0))
    return jnp.where(jnp.any(inside), found, upper[-1])


class FleetPlayer:
    """Plays lanes on the recording of an environment whose deployment has a fleet.

    Args:
      env: windows, traffic and deployment; ``deployment.num_gpus`` are the most replicas.
      fleet: constants of the rules.
      action: knobs beside the replicas, which do not change.
      target: share of requests inside the objectives that is asked for.
      key: typed key of start-up times, the same for all lanes.
      initial: replicas that serve at the start of windows, where they are scaled.
    """

    def __init__(
        self,
        env: ServeEnv,
        fleet: Fleetwide,
        action: ServeAction,
        target: float,
        key: jax.Array,
        initial: Callable[[slice], int],
    ) -> None:
        assert env.workload.replay_counts is not None
        self.env, self.fleet, self.action = env, fleet, action
        self.target, self.key = target, key
        self.initial = initial
        self.counts = np.asarray(env.workload.replay_counts)
        rejected = env.workload.replay_rejected
        empty = np.zeros((len(self.counts), self.counts.shape[2]), np.float32)
        self.rejected = empty if rejected is None else np.asarray(rejected)

    def play(
        self,
        lanes: Sequence[RuleSetting],
        parts: Sequence[slice],
        progress: Callable[[int], None] = lambda done: None,
    ) -> FleetWindows:
        """Plays lanes on parts of the recording, each part from its own beginning.

        Args:
          parts: windows of the recording.
          progress: told of windows played, summed over lanes.

        Returns:
          sums over blocks of at most ``CHUNK_WINDOWS`` windows, float32[lanes, blocks].
        """
        found = [self._play_part(lanes, part, progress) for part in parts]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *found)

    def _play_part(
        self, lanes: Sequence[RuleSetting], windows: slice, progress: Callable[[int], None]
    ) -> FleetWindows:
        parts, side_by_side = [], FEW_LANES if len(lanes) <= FEW_LANES else LANES
        for first in range(0, len(lanes), side_by_side):
            batch = list(lanes[first : first + side_by_side])
            filled = batch + [batch[0]] * (side_by_side - len(batch))
            parts.append(self._play(filled, windows, progress))
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
        return jax.tree.map(lambda leaf: leaf[: len(lanes)], joined)

    def _play(
        self, lanes: Sequence[RuleSetting], windows: slice, progress: Callable[[int], None]
    ) -> FleetWindows:
        settings = self._settings(lanes)
        carry = self._start(lanes, self.initial(windows))
        counts, rejected = self.counts[windows], self.rejected[windows]
        sums = []
        for first in range(0, len(counts), CHUNK_WINDOWS):
            chunk, turned_away = (
                all_of[first : first + CHUNK_WINDOWS] for all_of in (counts, rejected)
            )
            played = len(chunk)
            lacking = CHUNK_WINDOWS - played
            chunk = np.pad(chunk, ((0, lacking), (0, 0), (0, 0)))
            turned_away = np.pad(turned_away, ((0, lacking), (0, 0)))
            carry, found = _chunk(
                self.env,
                self.action,
                settings,
                carry,
                tuple(map(jnp.asarray, (chunk, turned_away, np.arange(CHUNK_WINDOWS) < played))),
                self.target,
                self.fleet,
            )
            sums.append(jax.tree.map(np.asarray, found))
            progress(played * len(lanes))
        return jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *sums)

    def _settings(self, lanes: Sequence[RuleSetting]) -> _Settings:
        assert self.env.deployment.fleet is not None
        own = self.env.deployment.fleet
        starts = [
            (float(own.start_least_s), float(own.start_most_s))
            if lane.start_s is None
            else (lane.start_s, lane.start_s)
            for lane in lanes
        ]
        return _Settings(
            kind=jnp.asarray([KINDS.index(lane.kind) for lane in lanes], jnp.int32),
            values=jnp.asarray(np.stack([lane.numbers for lane in lanes])),
            start_s=jnp.asarray(starts, jnp.float32),
        )

    def _start(self, lanes: Sequence[RuleSetting], initial: int) -> _Carry:
        classes, places = self.env.workload.classes, self.env.deployment.fleet
        assert places is not None
        count = classes.prompt_tokens.shape[0]
        sim = init_sim(count, self.env.time_scale, classes.output_ages)

        def one(serving: jax.Array) -> _Carry:
            state = init_fleet(self.key, places, serving.astype(jnp.int32), count)
            return _Carry(
                dataclasses.replace(sim, fleet=state),
                first_memory(self.fleet, serving),
                first_reading(serving),
                no_latencies(count, self.fleet.window_s),
            )

        serving = jnp.asarray([lane.serving(initial) for lane in lanes], jnp.float32)
        return jax.vmap(one)(serving)


@functools.partial(jax.jit, static_argnames="fleet")
def _chunk(
    env: ServeEnv,
    action: ServeAction,
    settings: _Settings,
    carry: _Carry,
    traffic: tuple[jax.Array, jax.Array, jax.Array],
    target: float,
    fleet: Fleetwide,
) -> tuple[_Carry, FleetWindows]:
    """Plays a chunk of windows in all lanes; sums float32[lanes]."""
    classes = env.workload.classes

    def lane(given: _Settings, carry: _Carry) -> tuple[_Carry, FleetWindows]:
        assert env.deployment.fleet is not None
        least_s, most_s = given.start_s
        times = dataclasses.replace(
            env.deployment.fleet, start_least_s=least_s, start_most_s=most_s
        )
        deployment = dataclasses.replace(env.deployment, fleet=times)

        def window(carry: _Carry, row: tuple[jax.Array, jax.Array, jax.Array]):
            counts, rejected, counted = row
            wanted, memory = wanted_by(fleet, given.kind, given.values, carry.memory, carry.reading)
            # A rule speaks when it has read a window.
            first = carry.sim.ticks == 0
            wanted = jnp.where(first, carry.memory.wanted[0], wanted)
            memory = jax.tree.map(
                lambda before, after: jnp.where(first, before, after), carry.memory, memory
            )
            arrivals = Arrivals(
                counts=counts,
                rate_rps=jnp.sum(counts) / env.window_s,
                regime=jnp.int32(0),
                acceptance_scale=jnp.float32(1.0),
                rejected=rejected,
            )
            sim, metrics = advance_window(
                carry.sim,
                action.replace(replicas=wanted.astype(jnp.int32)),
                arrivals,
                deployment=deployment,
                classes=classes,
                table=env.table,
                slo=env.slo,
                window_s=env.window_s,
            )
            reading, latencies = read_window(
                carry.latencies,
                metrics,
                classes.prompt_tokens,
                env.window_s,
            )
            ended = add_up(metrics.completed + metrics.rejected + metrics.lost)
            good = add_up(metrics.good)
            missed = (ended > 0.5) & (good < target * ended)
            sums = FleetWindows(
                seconds=jnp.float32(env.window_s),
                ended=ended,
                good=good,
                rented_s=metrics.replicas_rented * env.window_s,
                cost_usd=metrics.cost_usd,
                changes=(wanted != carry.memory.wanted[0]).astype(jnp.float32),
                missed_s=jnp.where(missed, env.window_s, 0.0),
            )
            sums = jax.tree.map(lambda value: jnp.where(counted, value, 0.0), sums)
            return _Carry(sim, memory, reading, latencies), sums

        carry, rows = jax.lax.scan(window, carry, traffic)
        return carry, jax.tree.map(jnp.sum, rows)

    return jax.vmap(lane)(settings, carry)
