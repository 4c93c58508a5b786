"""Autoscaling rules that operators run, each from its published form.

A rule reads a fleet's metrics once in a window and says how many replicas are wanted. Rules are
pure functions of frozen pytrees, so that thousands of parameter settings are played at once, and
the same rule acts in the reference simulator and on a real fleet. Defaults are those of the source
that a rule names; ``SEARCHED`` bounds are what tuning tries.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxserve.scaling.history import Fleetwide, Reading, mean_over, push
from jaxserve.scaling.rule_form import RuleMemory, by_ratio, kept, parameter, settled


def _rule(cls: type) -> type:
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


@_rule
class HpaRunning:
    """KServe: HPA on the requests in batches."""

    name: ClassVar[str] = "hpa_running"
    source: ClassVar[str] = "kserve/website, autoscaling.md: vllm:num_requests_running, target 4"
    target: float = parameter(4.0, 2.0, 400.0, "requests in batches for each replica", "requests")
    down_window_s: float = parameter(300.0, 30.0, 1500.0, "stabilisation of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        desired = by_ratio(memory.wanted[0], reading.running, self.target)
        return settled(fleet, memory, desired, down_window_s=self.down_window_s)


@_rule
class KedaWaiting:
    """vLLM production-stack: KEDA on the requests that wait."""

    name: ClassVar[str] = "keda_waiting"
    source: ClassVar[str] = (
        "vllm-project/production-stack, autoscaling-keda.rst: vllm:num_requests_waiting, "
        "threshold 5; its cooldown of 360 s acts on the way to zero replicas only"
    )
    target: float = parameter(5.0, 0.2, 100.0, "waiting requests for each replica", "requests")
    down_window_s: float = parameter(300.0, 30.0, 1500.0, "stabilisation of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        desired = by_ratio(memory.wanted[0], reading.waiting, self.target)
        return settled(fleet, memory, desired, down_window_s=self.down_window_s)


@_rule
class KedaEndpointPicker:
    """llm-d: KEDA on the endpoint picker's queue and on running requests."""

    name: ClassVar[str] = "keda_epp"
    source: ClassVar[str] = (
        "llm-d/llm-d, guides/workload-autoscaling/keda-epp, queue guard: 1 queued, 16 running; up "
        "100 % in 15 s"
    )
    waiting_target: float = parameter(
        1.0, 0.5, 64.0, "queued requests for each replica", "requests"
    )
    running_target: float = parameter(16.0, 2.0, 400.0, "running requests, likewise", "requests")
    down_window_s: float = parameter(300.0, 30.0, 1500.0, "stabilisation of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        n, demand = (
            memory.wanted[0],
            jnp.maximum(
                reading.waiting / self.waiting_target, reading.running / self.running_target
            ),
        )
        # The guard: demand above what there is asks for no more than what does not start already.
        demand = jnp.where(demand <= n, demand, jnp.maximum(demand - reading.starting, n))
        desired = by_ratio(n, demand, 1.0)
        return settled(fleet, memory, desired, down_window_s=self.down_window_s, up_pods=0.0)


@_rule
class TokenAware:
    """llm-d: prompt tokens that wait against prefill speed, and the KV cache in use."""

    name: ClassVar[str] = "token_aware"
    source: ClassVar[str] = (
        "llm-d/llm-d, guides/workload-autoscaling/keda-epp-token-aware: 1.5 s of prefill, KV usage "
        ".8; up 1 in 180 s, down 1 in 300 s"
    )
    queue_s: float = parameter(1.5, 0.1, 30.0, "seconds of prefill that may wait", "s")
    kv_target: float = parameter(0.8, 0.05, 1.0, "KV usage for each replica", "share")
    down_window_s: float = parameter(300.0, 30.0, 1500.0, "stabilisation of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        now = memory.wanted[0]
        queue_s = reading.waiting_tokens / fleet.prefill_tokens_per_s
        queue = by_ratio(now, queue_s, self.queue_s)
        kv = by_ratio(now, reading.kv_usage * reading.serving, self.kv_target)
        desired = jnp.maximum(queue, kv)
        return settled(
            fleet,
            memory,
            desired,
            down_window_s=self.down_window_s,
            up_share=0.0,
            up_pods=1.0,
            up_period_s=180.0,
            down_pods=1.0,
            down_period_s=300.0,
        )


@_rule
class SloLaw:
    """llm-d: latencies as shares of their objectives.

    With s the mean over 45 s of min(max(P90 TTFT / S1, P90 TPOT / S2), 2), n replicas provisioned
    and c the share of them that is ready: above ``up_at`` n + ceil(n (s c / up_at - 1)) are
    wanted, below ``down_at`` n - floor(n (1 - s / down_at)). Percentiles are over a minute; without
    traffic they are 0. The law is run with predicted latencies, which see a queue before the first
    tokens of its requests do; here TTFT is at least the wait that a new request meets.
    """

    name: ClassVar[str] = "slo_law"
    source: ClassVar[str] = (
        "llm-d/llm-d, README.slo-aware.md: .55 and .40; up max(100 %, 4) in 60 s after 30 s, down "
        "1 in 120 s after 180 s"
    )
    up_at: float = parameter(0.55, 0.1, 1.5, "share of the objective above which it scales up")
    down_at: float = parameter(0.40, 0.05, 1.2, "share of the objective below which it scales down")
    down_window_s: float = parameter(180.0, 30.0, 1500.0, "stabilisation of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        ttft_s = jnp.maximum(reading.ttft_p90_s, reading.coming_wait_s)
        worst = jnp.maximum(ttft_s / fleet.ttft_slo_s, reading.tpot_p90_s / fleet.tpot_slo_s)
        signal = push(memory.signal, jnp.minimum(worst, 2.0))
        s = mean_over(signal, jnp.float32(45.0), fleet.window_s)
        n = jnp.maximum(reading.provisioned, 1.0)
        # Replicas that are not ready yet will take their share of the load.
        c = jnp.where(reading.serving > 0.0, reading.serving / n, 1.0)
        more = n + jnp.ceil(n * jnp.maximum(s * c / self.up_at - 1.0, 0.0) - 1e-4)
        fewer = n - jnp.floor(n * jnp.maximum(1.0 - s / self.down_at, 0.0))
        desired = jnp.where(s > self.up_at, more, jnp.where(s < self.down_at, fewer, n))
        memory = dataclasses.replace(memory, signal=signal)
        return settled(
            fleet,
            memory,
            desired,
            up_window_s=30.0,
            down_window_s=self.down_window_s,
            up_period_s=60.0,
            down_pods=1.0,
            down_period_s=120.0,
        )


@_rule
class DynamoThroughput:
    """Dynamo's planner, throughput mode: the load of the next interval over what a replica bears.

    The predictor is the Kalman filter of a local linear trend (q_level 1, q_trend .1, r 10), one of
    the planner's four.
    """

    name: ClassVar[str] = "dynamo_throughput"
    source: ClassVar[str] = (
        "ai-dynamo/dynamo, planner/core/throughput_scaling.py and core/load/predictors.py: every "
        "180 s, ceil(predicted requests/s / requests/s of an engine inside the objectives)"
    )
    interval_s: float = parameter(180.0, 30.0, 900.0, "time between two decisions", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        signal = push(memory.signal, reading.arrivals_rps)
        since_s = memory.since_s + fleet.window_s
        acts = since_s >= self.interval_s - 0.5 * fleet.window_s
        rate = mean_over(signal, jnp.float32(self.interval_s), fleet.window_s)
        level, covariance = _trend_step(memory.level, memory.covariance, rate)
        predicted = jnp.maximum(level[0] + level[1], 0.0)
        desired = jnp.ceil(predicted / fleet.requests_per_s - 1e-4)
        wanted = jnp.where(acts, fleet.clip(desired), memory.wanted[0])
        return kept(
            memory,
            wanted,
            signal=signal,
            since_s=jnp.where(acts, 0.0, since_s),
            level=jnp.where(acts, level, memory.level),
            covariance=jnp.where(acts, covariance, memory.covariance),
        )


def _trend_step(
    state: jax.Array, covariance: jax.Array, seen: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A step of the Kalman filter of a local linear trend: x' = F x, level seen with noise 10."""
    step = jnp.array([[1.0, 1.0], [0.0, 1.0]])
    # The filter begins at the first figure it is told, without a trend.
    begins = covariance[0, 0] <= 0.0
    moved = step @ state
    spread = step @ covariance @ step.T + jnp.diag(jnp.array([1.0, 0.1]))
    gain = spread[:, 0] / (spread[0, 0] + 10.0)
    return (
        jnp.where(begins, jnp.stack([seen, 0.0 * seen]), moved + gain * (seen - moved[0])),
        jnp.where(begins, jnp.eye(2), spread - jnp.outer(gain, spread[0])),
    )


@_rule
class DynamoLoad:
    """Dynamo's planner, load mode of aggregated engines: one replica up or down by the KV cache
    that running and queued requests take or want, none while replicas start."""

    name: ClassVar[str] = "dynamo_load"
    source: ClassVar[str] = (
        "ai-dynamo/dynamo, planner/core/load_scaling.py: (scheduled and queued KV, queued prefill) "
        "/ KV, up above 1.0 and down below .6 in its target throughput; it reads every 5 s"
    )
    up_kv: float = parameter(
        1.0, 0.1, 1.0, "KV in use or wanted, above which it scales up", "share"
    )
    down_kv: float = parameter(0.6, 0.02, 0.9, "the same, below which it scales down", "share")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        pool = jnp.maximum(reading.serving, 1.0) * fleet.kv_tokens
        use = reading.kv_usage + reading.waiting_tokens / pool
        idle = reading.starting <= 0.0
        # A pool cannot be more than full but for the requests that wait.
        up = idle & (use >= 0.995 * self.up_kv)
        down = idle & ~up & (use < jnp.minimum(self.down_kv, self.up_kv))
        step = jnp.where(up, 1.0, jnp.where(down, -1.0, 0.0))
        return kept(memory, fleet.clip(memory.wanted[0] + step))


@_rule
class AibrixKpa:
    """AIBrix's KPA: the KV cache in use over a stable window, or a panic window when that is more
    than twice as much; at most twice and at least half of what is ready."""

    name: ClassVar[str] = "aibrix_kpa"
    source: ClassVar[str] = (
        "vllm-project/aibrix, pkg/controller/podautoscaler: windows of 180 and 60 s, panic at a "
        "ratio of 2, rates 2 up and down, tolerance 10 %, down after 300 s; target .5 of samples"
    )
    target: float = parameter(0.5, 0.03, 1.0, "KV usage for each replica", "share")
    down_window_s: float = parameter(300.0, 30.0, 1500.0, "cooldown of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        signal = push(memory.signal, reading.kv_usage * reading.serving)
        stable, panic = (
            mean_over(signal, jnp.float32(span), fleet.window_s) for span in (180.0, 60.0)
        )
        panics = panic > 2.0 * stable
        now, ready = memory.wanted[0], jnp.maximum(reading.serving, 1.0)
        desired = by_ratio(now, jnp.where(panics, panic, stable), self.target)
        desired = jnp.clip(desired, jnp.floor(ready / 2.0), jnp.ceil(2.0 * ready))
        desired = jnp.where(panics, jnp.maximum(desired, now), desired)
        memory = dataclasses.replace(memory, signal=signal)
        return settled(
            fleet,
            memory,
            desired,
            down_window_s=self.down_window_s,
            up_pods=jnp.inf,
            up_period_s=fleet.window_s,
        )


@_rule
class RayServe:
    """Ray Serve: ongoing requests over a target, after a delay in either direction."""

    name: ClassVar[str] = "ray_serve"
    source: ClassVar[str] = (
        "ray-project/ray, serve/autoscaling_policy.py: target 2, mean over 30 s, up after 30 s, "
        "down after 600 s"
    )
    target: float = parameter(2.0, 2.0, 400.0, "ongoing requests for each replica", "requests")
    up_delay_s: float = parameter(30.0, 15.0, 300.0, "delay of scaling up", "s")
    down_delay_s: float = parameter(600.0, 30.0, 1500.0, "delay of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        signal = push(memory.signal, reading.running + reading.waiting)
        ongoing = mean_over(signal, jnp.float32(30.0), fleet.window_s)
        desired = fleet.clip(jnp.ceil(ongoing / self.target - 1e-4))
        return _after_delay(fleet, memory, desired, signal, self.up_delay_s, self.down_delay_s)


@_rule
class SkyServe:
    """SkyServe: requests a second over a target, after a delay in either direction."""

    name: ClassVar[str] = "sky_serve"
    source: ClassVar[str] = (
        "skypilot-org/skypilot, sky/serve/constants.py: rate of 60 s, up after 300 s, down after "
        "1,200 s; its target has no default and is what a replica bears"
    )
    load: float = parameter(
        1.0, 0.4, 2.0, "share of a replica's bearable rate that is planned with"
    )
    up_delay_s: float = parameter(300.0, 15.0, 600.0, "delay of scaling up", "s")
    down_delay_s: float = parameter(1200.0, 30.0, 1500.0, "delay of scaling down", "s")

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """See ``ScalingRule``."""
        signal = push(memory.signal, reading.arrivals_rps)
        rate = mean_over(signal, jnp.float32(60.0), fleet.window_s)
        desired = fleet.clip(jnp.ceil(rate / (self.load * fleet.requests_per_s) - 1e-4))
        return _after_delay(fleet, memory, desired, signal, self.up_delay_s, self.down_delay_s)


def _after_delay(
    fleet: Fleetwide,
    memory: RuleMemory,
    desired: jax.Array,
    signal: jax.Array,
    up_s: jax.Array | float,
    down_s: jax.Array | float,
) -> tuple[jax.Array, RuleMemory]:
    """``desired`` once it has been above, or below, what is wanted for long enough."""
    now = memory.wanted[0]
    beyond = jnp.stack([desired > now, desired < now])
    level = jnp.where(beyond, memory.level + fleet.window_s, 0.0)
    half = 0.5 * fleet.window_s
    acts = (level[0] > up_s - half) | (level[1] > down_s - half)
    wanted = jnp.where(acts, desired, now)
    return kept(memory, wanted, signal=signal, level=jnp.where(acts, 0.0, level))


RULES: dict[str, type] = {
    rule.name: rule
    for rule in (
        HpaRunning,
        KedaWaiting,
        KedaEndpointPicker,
        TokenAware,
        SloLaw,
        DynamoThroughput,
        DynamoLoad,
        AibrixKpa,
        RayServe,
        SkyServe,
    )
}
"""Rules by name."""
