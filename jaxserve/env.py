"""ServeEnv: the only place where simulator, task and reward meet.

    env = jaxserve.make("bursty_workload")
    state, timestep = env.reset(key)
    state, timestep = env.step(state, action)

All functions are pure; ``env`` is a frozen pytree of its own parameters, so a batch of different
tasks or hardware is a stacked ``env`` under the same ``jax.vmap``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxserve.arrays.batching import add_up, batch_last
from jaxserve.errors import InputError
from jaxserve.sim.fast.fleet import init_fleet
from jaxserve.sim.fast.latency import ttft_quantile
from jaxserve.sim.fast.state import SimState, Slo, init_sim
from jaxserve.sim.fast.window import advance_window, idle_metrics
from jaxserve.sim.machine.deployment import Deployment
from jaxserve.sim.table.lookup import LatencyTable
from jaxserve.sim.traffic.workload import (
    Arrivals,
    TrafficClasses,
    Workload,
    WorkloadState,
    draw_arrivals,
    init_workload,
)
from jaxserve.spaces import (
    KNOBS,
    OBSERVATION_FIELDS,
    check_single,
    clip_action,
    clip_observation,
)
from jaxserve.tasks.reward import RewardModel, compute_reward
from jaxserve.types import (
    PRIORITY_GROUPS,
    Replaceable,
    RewardParts,
    ServeAction,
    ServeObservation,
    TimeStep,
    WindowMetrics,
)

_START_UPS = 1
"""Number that tells the key of start-ups from the other keys of an episode."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EnvState(Replaceable):
    """Everything an episode carries from window to window."""

    workload: WorkloadState
    sim: SimState
    observation: ServeObservation
    """the last one: windows without first tokens repeat its latencies."""
    step: jax.Array
    """int32, windows finished."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ServeEnv(Replaceable):
    """A task on a deployment. Build it with ``jaxserve.make``."""

    table: LatencyTable
    deployment: Deployment
    workload: Workload
    slo: Slo
    reward: RewardModel
    knob_active: jax.Array
    """bool[7], knobs the agent may turn, in the order of ``jaxserve.spaces.KNOBS``."""
    locked: ServeAction
    """values of the knobs that are not active."""
    lowest: ServeAction
    """least values of the knobs; lower ones are raised to them."""
    highest: ServeAction
    """greatest values of the knobs; higher ones are lowered to them."""
    horizon: jax.Array
    """int32, windows per episode."""
    randomisation: jax.Array
    """float32, half-width of the per-episode log-uniform slowness of the hardware, 0 = none."""
    time_scale: jax.Array
    """float32, slowness of the hardware of all episodes relative to the table, 1 as a rule. Agents
    are not told."""
    window_s: float = dataclasses.field(metadata={"static": True})
    """seconds per control window."""
    ticks: int = dataclasses.field(metadata={"static": True})
    """scheduler ticks per window."""

    def reset(self, key: jax.Array) -> tuple[EnvState, TimeStep]:
        """Starts an episode on an idle deployment, all of whose replicas serve.

        Args:
          key: typed PRNG key; it is the episode's only source of randomness.

        Returns:
          the state and a TimeStep with reward 0 and the idle observation.

        Raises:
          InputError: no key, an old one (``jax.random.PRNGKey``), or several.
        """
        _check_key(key)
        scale_key, workload_key = jax.random.split(key)
        spread = self.randomisation * jax.random.uniform(scale_key, (), minval=-1.0)
        class_count = self.workload.classes.prompt_tokens.shape[0]
        sim = init_sim(
            class_count, self.time_scale * jnp.exp(spread), self.workload.classes.output_ages
        )
        fleet = self.deployment.fleet
        if fleet is not None:
            start_key = jax.random.fold_in(key, _START_UPS)
            serving = self.deployment.num_gpus.astype(jnp.int32)
            replicas = init_fleet(start_key, fleet, serving, class_count)
            sim = dataclasses.replace(sim, fleet=replicas)
        observation = self._idle_observation()
        metrics = dataclasses.replace(
            idle_metrics(class_count), replicas_ready=observation.replicas_ready
        )
        state = EnvState(
            workload=init_workload(self.workload, workload_key),
            sim=sim,
            observation=observation,
            step=jnp.int32(0),
        )
        zero = jnp.float32(0.0)
        return state, TimeStep(
            observation=observation,
            reward=zero,
            terminated=jnp.bool_(False),
            truncated=jnp.bool_(False),
            metrics=metrics,
            parts=RewardParts(
                throughput=zero, latency=zero, slo=zero, cost=zero, memory=zero, total=zero
            ),
        )

    def step(
        self, state: EnvState, action: ServeAction, key: jax.Array | None = None
    ) -> tuple[EnvState, TimeStep]:
        """Holds the knobs for one window.

        Args:
          action: scalars; out-of-range values are clipped, inactive knobs ignored.
          key: not consumed here: an episode's traffic depends on its reset key alone, so that a
            list of actions always replays. Wrappers that start new episodes consume it.

        Returns:
          the next state and its TimeStep; ``truncated`` at the horizon. Stepping on is allowed and
          continues the traffic.

        Raises:
          InputError: no action, or several: batches go through ``jax.vmap``.
        """
        del key
        check_single(action)
        action = self.effective_action(action)
        workload_state, arrivals = draw_arrivals(
            self.workload, state.workload, state.step, self.ticks, self.window_s
        )
        sim, metrics = self.simulate(state.sim, action, arrivals)
        step = state.step + 1
        # A state beyond the horizon has had the credit of its last window.
        parts = compute_reward(self.reward, metrics, step == self.horizon)
        observation = self.next_observation(state.observation, metrics, step)
        state = EnvState(workload=workload_state, sim=sim, observation=observation, step=step)
        return state, TimeStep(
            observation=observation,
            reward=parts.total,
            terminated=jnp.bool_(False),
            truncated=step >= self.horizon,
            metrics=metrics,
            parts=parts,
        )

    def simulate(
        self, sim: SimState, action: ServeAction, arrivals: Arrivals
    ) -> tuple[SimState, WindowMetrics]:
        """Simulates a window of the deployment under given arrivals; ``action`` are the knobs as
        they act."""
        return advance_window(
            sim,
            action,
            arrivals,
            deployment=self.deployment,
            classes=self.workload.classes,
            table=self.table,
            slo=self.slo,
            window_s=self.window_s,
        )

    def effective_action(self, action: ServeAction) -> ServeAction:
        """The knobs that act: clipped to the task's limits, inactive ones at their locked value."""
        action = clip_action(action)

        def acts(index: int, knob: str) -> jax.Array:
            low, high = getattr(self.lowest, knob), getattr(self.highest, knob)
            turned = jnp.clip(getattr(action, knob), low, high)
            return jnp.where(self.knob_active[index], turned, getattr(self.locked, knob))

        return ServeAction(**{knob: acts(i, knob) for i, knob in enumerate(KNOBS)})

    def observe(self, observation: ServeObservation) -> jax.Array:
        """Normalised features for networks, float32[len(self.feature_names)], roughly in -1..2."""
        features = _FEATURES if self.deployment.fleet is None else _FEATURES | _FLEET_FEATURES
        return jnp.stack([feature(self, observation) for feature in features.values()])

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the entries of ``observe``: ``FEATURE_NAMES``, and those of a fleet behind them
        where the deployment has one."""
        return FEATURE_NAMES + (() if self.deployment.fleet is None else FLEET_FEATURE_NAMES)

    def _idle_observation(self) -> ServeObservation:
        idle = {
            name: jnp.full(entry.shape, entry.idle, jnp.float32)
            for name, entry in OBSERVATION_FIELDS.items()
        }
        # Nothing has arrived yet: the average over the regimes.
        mix = self.workload.regimes.class_mix
        idle["mean_prompt_length"] = jnp.mean(mix @ self.workload.classes.prompt_tokens)
        idle["gpu_memory_used_gb"] = (
            self.deployment.weights_gib[0] + self.deployment.activation_base_gib
        )
        idle["replicas_ready"] = self.deployment.num_gpus
        return ServeObservation(**idle)

    def next_observation(
        self, last: ServeObservation, metrics: WindowMetrics, step: jax.Array
    ) -> ServeObservation:
        """Observation at the end of a window; ``step`` is the number of windows finished."""
        return _next_observation(
            self.workload.classes, last, metrics, step, jnp.float32(self.window_s)
        )

    def next_observation_without_end(
        self, last: ServeObservation, metrics: WindowMetrics, count: jax.Array
    ) -> ServeObservation:
        """Observation at the end of a window of a deployment that is operated on and on.

        Policies are trained on episodes: step and cost start again after every horizon, so that
        features stay in their range of training. The step is never 0, at which policies reset their
        memory.

        Args:
          last: the observation before; windows between the two may be missing.
          metrics: of the window.
          count: int32, number of the window, from 1.
        """
        step = 1 + (count - 1) % self.horizon
        again = step <= last.step_index
        last = dataclasses.replace(last, cost_so_far=jnp.where(again, 0.0, last.cost_so_far))
        return self.next_observation(last, metrics, step)


def _check_key(key: object) -> None:
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    if not typed or jnp.shape(key):  # type: ignore[arg-type]
        raise InputError(
            f"key is {key!r:.60}; it must be one typed key, such as jax.random.key(0), and "
            "jax.vmap takes many keys"
        )


@batch_last
def _next_observation(
    classes: TrafficClasses,
    last: ServeObservation,
    metrics: WindowMetrics,
    step: jax.Array,
    window_s: jax.Array,
) -> ServeObservation:
    arrived = add_up(metrics.arrivals)
    first_tokens = add_up(metrics.first_tokens)
    ended = add_up(metrics.completed + metrics.rejected + metrics.lost)
    good = add_up(metrics.good)
    compliance = jnp.where(ended > 0.0, good / jnp.maximum(ended, 1e-9), 1.0)
    good_tokens = add_up(metrics.good * classes.output_tokens)
    by_group = [
        add_up(jnp.where(classes.priority == group, metrics.arrivals, 0.0))
        for group in range(PRIORITY_GROUPS)
    ]

    def ttft_ms(probability: float, before: jax.Array) -> jax.Array:
        seconds = ttft_quantile(metrics.ttft_exceeded, first_tokens, probability)
        return jnp.where(first_tokens > 0.01, 1000.0 * seconds, before)

    return clip_observation(
        ServeObservation(
            queue_depth=add_up(metrics.waiting),
            active_requests=add_up(metrics.running),
            kv_cache_occupancy=metrics.kv_occupancy,
            mean_prompt_length=jnp.where(
                arrived > 0.0,
                add_up(metrics.arrivals * classes.prompt_tokens) / jnp.maximum(arrived, 1.0),
                last.mean_prompt_length,
            ),
            p50_ttft_ms=ttft_ms(0.5, last.p50_ttft_ms),
            p99_ttft_ms=ttft_ms(0.99, last.p99_ttft_ms),
            p50_itl_ms=1000.0 * metrics.p50_itl_s,
            mean_itl_ms=1000.0 * metrics.itl_s,
            throughput_tps=metrics.tokens / window_s,
            slo_compliance_rate=compliance,
            gpu_memory_used_gb=metrics.memory_gib,
            estimated_cost_per_1k=1000.0 * metrics.cost_usd / jnp.maximum(good_tokens, 1e-3),
            request_arrival_rate=arrived / window_s,
            spec_acceptance_rate=metrics.acceptance,
            eviction_events=metrics.preemptions,
            step_index=step,
            priority_distribution=jnp.stack(by_group) / jnp.maximum(arrived, 1.0),
            slo_violation_rate=1.0 - compliance,
            cost_so_far=last.cost_so_far + metrics.cost_usd,
            reconfiguring=1.0 - metrics.capacity,
            replicas_ready=metrics.replicas_ready,
            replicas_starting=metrics.replicas_starting,
        )
    )


def _log_ratio(value: jax.Array, reference: jax.Array) -> jax.Array:
    """log2 of value / reference, clipped to -6..6 and scaled to -1..1."""
    return jnp.clip(jnp.log2(jnp.maximum(value, 1e-6) / reference), -6.0, 6.0) / 6.0


def _over_ttft_slo(env: ServeEnv, latency_ms: jax.Array) -> jax.Array:
    return _log_ratio(latency_ms, 1000.0 * jnp.min(env.slo.ttft_s))


_FEATURES: dict[str, Callable[[ServeEnv, ServeObservation], jax.Array]] = {
    "log_queue_depth": lambda env, o: jnp.log1p(o.queue_depth) / 6.0,
    "log_active_requests": lambda env, o: jnp.log1p(o.active_requests) / 6.0,
    "kv_cache_occupancy": lambda env, o: o.kv_cache_occupancy,
    "log_mean_prompt_length": lambda env, o: jnp.log2(1.0 + o.mean_prompt_length) / 13.0,
    "log_p50_ttft_over_slo": lambda env, o: _over_ttft_slo(env, o.p50_ttft_ms),
    "log_p99_ttft_over_slo": lambda env, o: _over_ttft_slo(env, o.p99_ttft_ms),
    "log_mean_itl_over_slo": lambda env, o: _log_ratio(
        o.mean_itl_ms, 1000.0 * jnp.min(env.slo.tpot_s)
    ),
    "log_throughput": lambda env, o: jnp.log1p(o.throughput_tps) / 10.0,
    "slo_compliance_rate": lambda env, o: o.slo_compliance_rate,
    "memory_share_of_device": lambda env, o: o.gpu_memory_used_gb / env.deployment.device_gib,
    "log_cost_per_1k": lambda env, o: jnp.log1p(100.0 * o.estimated_cost_per_1k) / 5.0,
    "log_arrival_rate_over_mean": lambda env, o: _log_ratio(
        o.request_arrival_rate, env.reward.expected_requests_per_s
    ),
    "spec_acceptance_rate": lambda env, o: o.spec_acceptance_rate,
    "log_evictions": lambda env, o: jnp.log1p(o.eviction_events) / 5.0,
    "episode_progress": lambda env, o: o.step_index / env.horizon,
    "priority_share_0": lambda env, o: o.priority_distribution[0],
    "priority_share_1": lambda env, o: o.priority_distribution[1],
    "priority_share_2": lambda env, o: o.priority_distribution[2],
    "slo_violation_rate": lambda env, o: o.slo_violation_rate,
    "cost_share": lambda env, o: o.cost_so_far / (env.reward.usd_scale * env.horizon),
    "reconfiguring": lambda env, o: o.reconfiguring,
}
FEATURE_NAMES = tuple(_FEATURES)
"""Names of the entries of ``ServeEnv.observe`` on a deployment without a fleet. Trained weights
depend on their order."""
_FLEET_FEATURES: dict[str, Callable[[ServeEnv, ServeObservation], jax.Array]] = {
    "replicas_ready_share": lambda env, o: o.replicas_ready / env.deployment.num_gpus,
    "replicas_starting_share": lambda env, o: o.replicas_starting / env.deployment.num_gpus,
}
FLEET_FEATURE_NAMES = tuple(_FLEET_FEATURES)
"""Names of the entries behind these on a deployment with a fleet."""
