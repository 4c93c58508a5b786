"""A reactive operator: rules of thumb, one per knob, on what the dashboard shows.

Against the best static setting it shows what feedback alone is worth; against a learned policy,
whether learning was worth it. The operator knows the hardware, the load tests and the service
catalogue, and estimates the traffic; the hidden regimes it never sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxserve.agents.capacity import Load, decode_speed, value_share
from jaxserve.arrays.convert import on_device
from jaxserve.env import ServeEnv
from jaxserve.fields import MAX_GPUS, Tier
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.spaces import ACTION_BOUNDS, KNOBS
from jaxserve.types import ServeAction, ServeObservation

_TIER, _SPLIT = KNOBS.index("quantization_tier"), KNOBS.index("prefill_decode_split")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class OperatorMemory:
    """Memory of the operator from window to window."""

    action: ServeAction
    """knobs of the last window."""
    load: Load
    """running estimate of the traffic."""
    prompt_tps: jax.Array
    """float32, running mean of prompt tokens that arrive per second."""
    tokens: jax.Array
    """float32, running mean of output tokens per window."""
    finished: jax.Array
    """float32, running mean of finished requests per window."""
    acceptance: jax.Array
    """float32, accepted draft tokens relative to the draft model's published figures."""
    queue: jax.Array
    """float32, queue depth a window ago."""
    active: jax.Array
    """float32, active requests a window ago."""
    since_switch: jax.Array
    """int32, windows since a tier or split was last changed."""
    persistent: jax.Array
    """int32, windows for which another tier or split has looked better."""
    since_queue: jax.Array
    """int32, windows since requests last queued."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HeuristicPolicy:
    """AIMD batch cap, the whole KV pool, SmartSpec depth, planned tier and split."""

    published_tokens_per_step: jax.Array = field(
        default_factory=lambda: on_device(tokens_per_step("sharegpt/eagle"))
    )
    """float32[9], of the draft model on chat, what is believed before anything is observed."""
    prior_output_tokens: float = 200.0
    """tokens, mean chat answer, believed before anything is observed."""
    forget: float = 0.05
    """weight of a new window in running means: twenty windows average several bursts, and a
    regime lasts longer than that."""
    forget_acceptance: float = 0.9
    """weight of a new window in the running mean of draft acceptance, which hundreds of drafts per
    window measure well."""
    reconsider: float = 0.02
    """per window, how fast a low acceptance that is not measured (depth 0) is forgotten, so that
    speculation is tried again within a minute."""
    depth_gain: float = 1.01
    """a depth must promise this much more speed to replace the present one."""
    cap_step: int = 8
    """sequences per GPU that the batch cap grows by in a quiet window."""
    cap_cut: float = 0.9
    """factor on the batch in a congested window."""
    cap_floor: int = 8
    """sequences per GPU; less leaves the GPU idle between weight passes."""
    kv_overcommit: float = 1.25
    """sequences admitted relative to the capacity of the KV pool at their mean length; sequences
    that have just started are shorter."""
    evictions_allowed: float = 0.5
    """preemptions per window that do not count as congestion."""
    memory_margin_gib: float = 0.1
    """left free on the device for what the estimate of activations misses."""
    payback_s: float = 30.0
    """a switch must earn its downtime back in this time: half of a regime that lasts a minute is
    left on average when it is noticed."""
    least_gain: float = 0.05
    """share of the arriving value by which another tier or split must look better."""
    patience: int = 3
    """windows for which it must look better: longer than a short burst."""
    dwell: int = 20
    """windows between switches of tier or split."""
    routing_rest: int = 20
    """windows without a queue after which priority routing goes off."""

    def init(self, env: ServeEnv) -> OperatorMemory:
        """Prior beliefs, an idle deployment in FP16 and colocated."""
        zero, count = jnp.float32(0.0), jnp.int32(0)
        finished = env.reward.expected_requests_per_s * env.window_s
        output = jnp.float32(self.prior_output_tokens)
        return OperatorMemory(
            action=replace(env.locked, quantization_tier=count, prefill_decode_split=count),
            load=Load(
                rate_rps=env.reward.expected_requests_per_s,
                prompt_tokens=zero,
                output_tokens=output,
                group_share=jnp.ones(3) / 3.0,
                tokens_per_step=self.published_tokens_per_step,
            ),
            prompt_tps=zero,
            tokens=finished * output,
            finished=finished,
            acceptance=jnp.float32(1.0),
            queue=zero,
            active=zero,
            since_switch=jnp.int32(self.dwell),
            persistent=count,
            since_queue=count,
        )

    def act(
        self, env: ServeEnv, memory: Any, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, Any]:
        """Updates the estimates, then sets knob by knob; the key is not used."""
        del key
        memory = self._estimate(env, memory, observation)
        memory = self._switch(env, memory, observation)
        tier = memory.action.quantization_tier
        split = memory.action.prefill_decode_split
        gpus = env.deployment.num_gpus
        decode_gpus = jnp.where(split > 0, gpus - split, gpus)
        present = (observation.active_requests + observation.queue_depth) / decode_gpus
        batch = jnp.clip(present, 1.0, memory.action.batch_cap)
        depth = self._depth(env, memory, batch)
        since_queue = jnp.where(observation.queue_depth > 0.0, 0, memory.since_queue + 1)
        action = env.effective_action(
            ServeAction(
                batch_cap=self._batch_cap(env, memory, observation, depth, decode_gpus),
                kv_budget_fraction=jnp.float32(1.0),
                speculation_depth=depth,
                quantization_tier=tier,
                prefill_decode_split=split,
                priority_routing=(since_queue < self.routing_rest).astype(jnp.int32),
                # All of them: rules of ``jaxserve.scaling`` scale replicas.
                replicas=jnp.int32(0),
            )
        )
        return action, replace(
            memory,
            action=action,
            queue=observation.queue_depth,
            active=observation.active_requests,
            since_queue=since_queue,
        )

    def _estimate(
        self, env: ServeEnv, memory: OperatorMemory, o: ServeObservation
    ) -> OperatorMemory:
        """Traffic from one more window; nothing but the prompt length before the first."""
        load = memory.load

        def mean(old: jax.Array, new: jax.Array) -> jax.Array:
            return old + self.forget * (new - old)

        # Conservation: what arrived and neither waits nor decodes has finished.
        change = o.queue_depth + o.active_requests - memory.queue - memory.active
        finished = jnp.maximum(o.request_arrival_rate * env.window_s - change, 0.0)
        finished = mean(memory.finished, finished)
        tokens = mean(memory.tokens, o.throughput_tps * env.window_s)

        rate = mean(load.rate_rps, o.request_arrival_rate)
        prompt_tps = mean(memory.prompt_tps, o.request_arrival_rate * o.mean_prompt_length)

        depth = memory.action.speculation_depth
        published = self.published_tokens_per_step - 1.0
        accepted = o.spec_acceptance_rate * depth / jnp.maximum(published[depth], 1e-3)
        measured = (o.spec_acceptance_rate > 0.0) & (o.active_requests >= 1.0)
        acceptance = jnp.where(
            measured,
            memory.acceptance + self.forget_acceptance * (accepted - memory.acceptance),
            memory.acceptance + self.reconsider * (1.0 - memory.acceptance),
        )
        seen = replace(
            memory,
            load=Load(
                rate_rps=rate,
                prompt_tokens=prompt_tps / jnp.maximum(rate, 1e-6),
                output_tokens=jnp.clip(tokens / jnp.maximum(finished, 1e-6), 16.0, 2048.0),
                group_share=mean(load.group_share, o.priority_distribution),
                tokens_per_step=1.0 + acceptance * published,
            ),
            prompt_tps=prompt_tps,
            tokens=tokens,
            finished=finished,
            acceptance=acceptance,
        )
        idle = replace(
            memory,
            load=replace(load, prompt_tokens=o.mean_prompt_length),
            prompt_tps=load.rate_rps * o.mean_prompt_length,
        )
        return jax.tree.map(lambda a, b: jnp.where(o.step_index > 0, a, b), seen, idle)

    def _switch(self, env: ServeEnv, memory: OperatorMemory, o: ServeObservation) -> OperatorMemory:
        """Changes tier or split when that pays for its downtime; the first choice is free."""
        gpus = env.deployment.num_gpus
        tier, split = memory.action.quantization_tier, memory.action.prefill_decode_split
        tiers = jnp.repeat(jnp.arange(len(Tier)), MAX_GPUS)
        splits = jnp.tile(jnp.arange(MAX_GPUS), len(Tier))
        possible = (splits < gpus) & (env.knob_active[_TIER] | (tiers == tier))
        possible &= env.knob_active[_SPLIT] | (splits == split)
        # All others, the present one, and it while it is changed: a rolling switch takes one GPU at
        # a time.
        candidates = (
            jnp.append(tiers, jnp.stack([tier, tier])),
            jnp.append(splits, jnp.stack([split, jnp.minimum(split, gpus - 2.0)])),
            jnp.append(jnp.full(len(tiers), gpus), jnp.stack([gpus, gpus - 1.0])),
        )
        share = jax.vmap(lambda t, s, n: value_share(env, memory.load, t, s, n))(*candidates)
        value, now, fewer = share[:-2], share[-2], share[-1]
        lost_per_s = now - jnp.where(gpus > 1.0, jnp.minimum(fewer, now), 0.0)
        reload_s = jnp.where(tiers != tier, env.deployment.restart_s * gpus, 0.0)
        downtime_s = jnp.maximum(reload_s, env.deployment.rerole_s * jnp.abs(splits - split))
        first = o.step_index == 0
        cost = jnp.where(first, 0.0, downtime_s * lost_per_s / self.payback_s)
        gain = jnp.where(possible, value - now - cost, -1.0)
        best = jnp.argmax(gain)
        persistent = jnp.where(
            gain[best] > jnp.where(first, 0.0, self.least_gain), memory.persistent + 1, 0
        )
        rested = memory.since_switch >= self.dwell
        goes = (persistent > 0) & (first | (rested & (persistent >= self.patience)))
        return replace(
            memory,
            action=replace(
                memory.action,
                quantization_tier=jnp.where(goes, tiers[best], tier).astype(jnp.int32),
                prefill_decode_split=jnp.where(goes, splits[best], split).astype(jnp.int32),
            ),
            since_switch=jnp.where(goes, 0, memory.since_switch + 1),
            persistent=jnp.where(goes, 0, persistent),
        )

    def _depth(self, env: ServeEnv, memory: OperatorMemory, batch: jax.Array) -> jax.Array:
        """int32: the fastest depth at the present batch."""
        speed = decode_speed(env, memory.load, memory.action.quantization_tier, batch)
        depth, best = memory.action.speculation_depth, jnp.argmax(speed)
        return jnp.where(speed[best] > self.depth_gain * speed[depth], best, depth).astype(
            jnp.int32
        )

    def _largest_batch(self, env: ServeEnv, depth: jax.Array, tier: jax.Array) -> jax.Array:
        """Sequences per GPU whose activations fit beside weights and KV pool in a full chunk."""
        d = env.deployment
        drafting = (depth > 0).astype(jnp.int32)
        taken = d.weights_gib[tier] + d.kv_pool_gib[tier, drafting] + d.draft_gib * drafting
        taken = taken + d.activation_base_gib + d.activation_gib_per_token * d.token_budget
        left = d.device_gib - self.memory_margin_gib - taken
        return left / (d.activation_gib_per_token + d.logits_gib_per_row) / (depth + 1)

    def _batch_cap(
        self,
        env: ServeEnv,
        memory: OperatorMemory,
        o: ServeObservation,
        depth: jax.Array,
        decode_gpus: jax.Array,
    ) -> jax.Array:
        """int32: up to what the memory holds; additive increase, multiplicative decrease."""
        tier, drafting = memory.action.quantization_tier, (depth > 0).astype(jnp.int32)
        pool = env.deployment.kv_pool_tokens[tier, drafting]
        ceiling = self.kv_overcommit * pool / env.deployment.kv_of(memory.load.context_tokens)
        ceiling = jnp.minimum(ceiling, self._largest_batch(env, depth, tier))
        # A switch evicts as well, which says nothing about the batch.
        congested = (o.eviction_events > self.evictions_allowed) & (o.reconfiguring <= 0.0)
        cap = memory.action.batch_cap.astype(jnp.float32)
        cut = self.cap_cut * jnp.minimum(cap, o.active_requests / decode_gpus)
        moved = jnp.where(congested, cut, cap + self.cap_step)
        moved = jnp.where(o.step_index == 0, ceiling, moved)
        highest = jnp.minimum(ceiling, ACTION_BOUNDS["batch_cap"].high)
        return jnp.clip(moved, self.cap_floor, jnp.maximum(highest, self.cap_floor)).astype(
            jnp.int32
        )
