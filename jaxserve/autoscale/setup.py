"""A fleet under recorded demand: environment, parts of the recording, what a replica bears."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter1d

from jaxserve import checks
from jaxserve.agents.progress import Progress
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.arrays.convert import on_device
from jaxserve.autoscale.play import CHUNK_WINDOWS, FleetPlayer, FleetWindows
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.fields import MAX_GPUS
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.setting import STATIC, RuleSetting
from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.table.lookup import contract, prefill_s_per_token
from jaxserve.spaces import make_action
from jaxserve.types import ServeAction

WINDOW_S = 15.0
"""Time between two readings of the metrics, s: the period of HPA, KEDA and llm-d."""
TICKS = 15
"""Ticks of a window."""
LEAST_WINDOWS = 40
"""Windows of the shortest recording that can be told apart into two parts: ten minutes."""
MOST_JUDGED = 17_280
"""Windows that a result is reported on, at most: three days."""
_BLOCK_WINDOWS = 1_440
_QUEUE_CAPACITY = 1e7
_STEPS = 16
"""Rates that are tried on one replica."""
_TRAIN_SHARE = 0.6
"""Share of a recording, from its beginning, that rules are tuned on."""


@dataclass(frozen=True)
class FleetDemand:
    """A deployment with a fleet, and recorded traffic in windows of ``WINDOW_S``."""

    setup: TaskSetup
    env: ServeEnv
    """its deployment has a fleet of ``most`` places."""
    action: ServeAction
    target: float
    """share of requests inside the objectives that is asked for."""
    seed: int
    least: int = 1
    """least number of replicas."""
    initial: int | None = None
    """replicas that serve at the start, where they are scaled; None for what the rate of the first
    minutes needs."""

    @property
    def most(self) -> int:
        """Places for replicas."""
        return round(float(self.env.deployment.num_gpus))

    @property
    def windows(self) -> int:
        """Windows of the recording."""
        assert self.env.workload.replay_counts is not None
        return len(self.env.workload.replay_counts)

    def train(self, most: int) -> list[slice]:
        """Windows that rules are tuned on: ``most`` of the first three fifths of the recording."""
        return _spread(0, round(_TRAIN_SHARE * self.windows), most)

    @property
    def test(self) -> list[slice]:
        """Windows that results are reported on: of the rest, three days at most."""
        return _spread(round(_TRAIN_SHARE * self.windows), self.windows, MOST_JUDGED)

    @cached_property
    def rates_rps(self) -> NDArray[np.float64]:
        """float64[windows], requests a second."""
        assert self.env.workload.replay_counts is not None
        return np.asarray(self.env.workload.replay_counts).sum(axis=(1, 2)) / WINDOW_S

    @cached_property
    def fleet(self) -> Fleetwide:
        """Constants of the rules; what a replica bears is measured on steady traffic of the
        mix that rules are tuned on."""
        return dataclasses.replace(
            self._unmeasured, requests_per_s=bearable_rate(self, self._unmeasured)
        )

    @property
    def mix(self) -> NDArray[np.float64]:
        """float64[F], share of each traffic class where rules are tuned; the judged part has no
        say."""
        assert self.env.workload.replay_counts is not None
        counts = np.asarray(self.env.workload.replay_counts)[: round(_TRAIN_SHARE * self.windows)]
        by_class = counts.sum(axis=(0, 1), dtype=np.float64)
        return by_class / max(by_class.sum(), 1.0)

    @property
    def _unmeasured(self) -> Fleetwide:
        env, classes = self.env, self.env.workload.classes
        share = self.mix
        prompt = float(share @ np.asarray(classes.prompt_tokens))
        table = contract(env.table, jnp.int32(0), jnp.int32(0))
        each_s = float(prefill_s_per_token(table, jnp.float32(prompt)))
        used = share > 0.0
        return Fleetwide(
            window_s=WINDOW_S,
            most=self.most,
            least=self.least,
            group=self.setup.spec.deployment.tensor_parallel,
            requests_per_s=1.0,
            prefill_tokens_per_s=1.0 / each_s,
            kv_tokens=float(np.asarray(env.deployment.kv_pool_tokens)[0, 0]),
            ttft_slo_s=float(np.asarray(env.slo.ttft_s)[used].min()),
            tpot_slo_s=float(np.asarray(env.slo.tpot_s)[used].min()),
        )

    def player(self) -> FleetPlayer:
        """Plays lanes on the recording."""
        return self._player(self.env, self.fleet, self.first_replicas)

    def player_of_one(self, counts: NDArray[np.float32]) -> FleetPlayer:
        """Plays lanes on other arrivals float32[W, TICKS, F], beginning with one replica."""
        workload = dataclasses.replace(
            self.env.workload, replay_counts=counts, replay_rejected=None
        )
        env = dataclasses.replace(self.env, workload=workload)
        return self._player(env, dataclasses.replace(self._unmeasured, least=1), lambda _: 1)

    def _player(
        self, env: ServeEnv, fleet: Fleetwide, initial: Callable[[slice], int]
    ) -> FleetPlayer:
        key = jax.random.key(self.seed)
        return FleetPlayer(env, fleet, self.action, self.target, key, initial)

    def first_replicas(self, windows: slice) -> int:
        """Replicas that serve at the start of windows of the recording, where they are scaled."""
        if self.initial is not None:
            return self.initial
        return int(np.clip(self.least_replicas[windows.start], self.least, self.most))

    @cached_property
    def least_replicas(self) -> NDArray[np.float64]:
        """float64[windows], ``ceil(rate / what a replica bears)``: the lower bound over time.

        Rates are means over five minutes, as no fleet follows the arrivals of seconds.
        """
        smooth = uniform_filter1d(self.rates_rps, min(20, self.windows), mode="nearest")
        return np.maximum(np.ceil(smooth / self.fleet.requests_per_s - 1e-9), 1.0)


def _spread(first: int, end: int, most: int) -> list[slice]:
    """``most`` windows from ``first`` to ``end``: all, or blocks of six hours spread evenly."""
    if end - first <= most:
        return [slice(first, end)]
    count = max(most // _BLOCK_WINDOWS, 1)
    size = min(_BLOCK_WINDOWS, most)
    begins = np.linspace(first, end - size, count).round().astype(int)
    return [slice(int(begin), int(begin) + size) for begin in begins]


def load_demand(
    max_replicas: int,
    settings: FleetSettings,
    batch_cap: int,
    attainment: float,
    min_replicas: int = 1,
    progress: Progress | None = None,
    seed: int = 0,
    **own: Any,
) -> FleetDemand:
    """A user's own deployment and traffic with a fleet.

    Args:
      max_replicas: places for replicas.
      settings: start-up and draining.
      batch_cap: sequences that a replica runs at once.
      attainment: share of requests inside the objectives that is asked for.
      min_replicas: replicas that always serve or start.
      progress: told about the reading of a large trace.
      seed: of start-up times.
      own: fields of ``jaxserve.tasks.own_deployment.OwnDeployment``.

    Raises:
      InputError: anything unknown, unreadable or out of range, or a recording that is too short.
    """
    checks.number("attainment", attainment, 0.5, 0.9999)
    checks.whole("max_replicas", max_replicas, 2, MAX_GPUS)
    checks.whole("seed", seed, 0, 2**31 - 1)
    fields = {"window_s": WINDOW_S, "ticks": TICKS, "horizon": 1}
    setup = load_setup("trace_replay", None, progress, fields, gpus=max_replicas, **own)
    env = setup.env
    # Requests of a fleet queue at its router, which turns none away.
    deployment = dataclasses.replace(
        env.deployment,
        fleet=settings.on_device(max_replicas),
        queue_capacity=on_device(_QUEUE_CAPACITY),
    )
    demand = FleetDemand(
        setup=setup,
        env=dataclasses.replace(env, deployment=deployment),
        action=make_action(batch_cap=batch_cap),
        target=attainment,
        seed=seed,
        least=checks.whole("min_replicas", min_replicas, 1, max_replicas),
    )
    least_s = max(LEAST_WINDOWS * WINDOW_S, 10.0 * settings.start_s[1])
    if demand.windows * WINDOW_S < least_s:
        raise InputError(
            f"the trace lasts {demand.windows * WINDOW_S:.0f} s; rules that scale replicas of "
            f"{settings.start_s[1]:g} s start-up are tuned and judged on {least_s:.0f} s or more"
        )
    return demand


def bearable_rate(demand: FleetDemand, fleet: Fleetwide) -> float:
    """Requests a second that a replica bears: the largest rate at which the target share of steady
    traffic, of the mix that rules are tuned on, is inside the objectives.

    Rates are tried in steps of half an hour each, first over six orders of magnitude and then
    finely around the largest that was borne.

    Raises:
      InputError: a replica bears not even the least rate.
    """
    low, high = 1e-3, 1e3
    for _ in range(2):
        rates = np.geomspace(low, high, _STEPS)
        borne = _borne(demand, rates)
        if not borne:
            raise InputError(
                f"one replica meets TTFT {fleet.ttft_slo_s:g} s and TPOT {fleet.tpot_slo_s:g} s "
                f"for less than {demand.target:.1%} of the requests at {low:g} requests/s; loosen "
                "an objective, or name another GPU or --tensor-parallel"
            )
        low, high = float(rates[borne - 1]), float(rates[min(borne, _STEPS - 1)])
    return low


def _borne(demand: FleetDemand, rates: NDArray[np.float64]) -> int:
    """How many of the rising rates one replica serves inside the objectives, before the first that
    it does not."""
    share = demand.mix
    rng = np.random.default_rng(demand.seed)
    per_tick = rates[:, None, None, None] * share * (WINDOW_S / TICKS)
    shape = (len(rates), CHUNK_WINDOWS, TICKS, len(share))
    counts = rng.poisson(np.broadcast_to(np.minimum(per_tick, 1e6), shape)).astype(np.float32)
    player = demand.player_of_one(counts.reshape(-1, TICKS, len(share)))
    steps = player.blocks([RuleSetting(STATIC, (1.0,))], slice(0, len(rates) * CHUNK_WINDOWS))
    borne = (step.good[0] >= demand.target * step.ended[0] for step in steps)
    # A queue of an overloaded step lasts into the next, so nothing after it counts.
    return sum(1 for _ in itertools.takewhile(bool, borne))


def attainment(windows: FleetWindows) -> NDArray[np.float64]:
    """float64[lanes], share of the requests inside both objectives."""
    good, ended = (np.asarray(each, float).sum(axis=1) for each in (windows.good, windows.ended))
    return good / np.maximum(ended, 1e-9)
