"""Rules played on recorded demand in the fast simulator, many settings at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.arrays.batching import add_up
from jaxserve.env import ServeEnv
from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.readings import Latencies, first_reading, no_latencies, read_window
from jaxserve.scaling.rule_form import RuleMemory, first_memory
from jaxserve.scaling.setting import KINDS, RuleSetting, wanted_by
from jaxserve.sim.fast.fleet import init_fleet
from jaxserve.sim.fast.state import SimState, init_sim
from jaxserve.sim.fast.window import advance_window
from jaxserve.sim.traffic.workload import Arrivals
from jaxserve.types import ServeAction

FEW_LANES, LANES = 8, 64
"""Settings that are played side by side, and a smaller number for few of them; there is a compiled
program for each number."""
CHUNK_WINDOWS = 120
"""Windows that a call plays, between which progress is shown."""


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
        # The program is the same for recordings of any length.
        workload = dataclasses.replace(env.workload, replay_counts=None, replay_rejected=None)
        self.env = dataclasses.replace(env, workload=workload)
        self.fleet, self.action = fleet, action
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
        parts = []
        for first in range(0, len(lanes), LANES):
            batch, blocks = lanes[first : first + LANES], []
            for block in self.blocks(batch, windows):
                blocks.append(block)
                # Totals are estimates that count the lanes which fill a batch up.
                played = round(float(block.seconds[0]) / self.env.window_s)
                progress(played * _side_by_side(len(batch)))
            parts.append(jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *blocks))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)

    def blocks(self, lanes: Sequence[RuleSetting], windows: slice) -> Iterator[FleetWindows]:
        """Plays up to ``LANES`` lanes on windows of the recording.

        Yields:
          sums over each block of ``CHUNK_WINDOWS`` windows once it has been played,
          float32[lanes].
        """
        count = len(lanes)
        lanes = [*lanes, *[lanes[0]] * (_side_by_side(count) - count)]
        settings = self._settings(lanes)
        carry = self._start(lanes, self.initial(windows))
        counts, rejected = self.counts[windows], self.rejected[windows]
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
            yield jax.tree.map(lambda leaf: np.asarray(leaf)[:count], found)

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


def _side_by_side(count: int) -> int:
    """Lanes of the program that plays ``count`` of them."""
    return FEW_LANES if count <= FEW_LANES else LANES


@jax.jit
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
