"""Autoscaling rules as controllers, which read a dashboard in place of a metrics server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from jaxserve.env import ServeEnv
from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.readings import TPOT_BUCKETS_S, TTFT_BUCKETS_S, histogram_quantile
from jaxserve.scaling.rule_form import RuleMemory, first_memory, parameters
from jaxserve.scaling.rules import RULES
from jaxserve.scaling.setting import (
    KINDS,
    STATIC,
    RuleSetting,
    parse_rule,
    rule_data,
    wanted_by,
)
from jaxserve.spaces import ACTION_BOUNDS, make_action
from jaxserve.types import ServeAction, ServeObservation

_Z99 = 2.3263
"""99th percentile of the standard normal distribution."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ScalingPolicy:
    """A rule of ``jaxserve.scaling.rules`` turns the replicas; the other knobs stay."""

    knobs: ServeAction
    """the knobs beside the replicas."""
    kind: jax.Array
    """int32, index into ``jaxserve.scaling.setting.KINDS``."""
    values: jax.Array
    """float32[MOST_PARAMETERS], numbers of the rule."""
    fleet: Fleetwide = dataclasses.field(metadata={"static": True})

    @classmethod
    def of(cls, setting: RuleSetting, knobs: ServeAction, fleet: Fleetwide) -> ScalingPolicy:
        """The policy of a rule with its numbers."""
        kind = jnp.int32(KINDS.index(setting.kind))
        return cls(knobs, kind, jnp.asarray(setting.numbers), fleet)

    @classmethod
    def from_setting(cls, setting: Mapping[str, Any]) -> ScalingPolicy:
        """The policy of ``setting``, which anchors keep.

        Raises:
          InputError: says what is missing, unknown or out of range.
        """
        found, fleet = rule_of_setting(setting)
        return cls.of(found, make_action(**setting["knobs"]), fleet)

    def setting(self) -> dict[str, Any]:
        """The rule, its numbers, the constants of its fleet and the other knobs; JSON-able."""
        kind = KINDS[int(self.kind)]
        count = 1 if kind == STATIC else len(parameters(RULES[kind]))
        values = tuple(float(f"{value:.6g}") for value in np.asarray(self.values)[:count])
        knobs = {
            knob: bound.number(round(float(getattr(self.knobs, knob)), 6))
            for knob, bound in ACTION_BOUNDS.items()
        }
        return rule_data(RuleSetting(kind, values), self.fleet) | {"knobs": knobs}

    def init(self, env: ServeEnv) -> RuleMemory:
        """Memory of a rule at the start of an episode, when all replicas serve."""
        return first_memory(self.fleet, env.deployment.num_gpus)

    def act(
        self, env: ServeEnv, memory: RuleMemory, observation: ServeObservation, key: jax.Array
    ) -> tuple[ServeAction, RuleMemory]:
        """The knobs with as many replicas as the rule wants."""
        del key
        wanted, memory = self.wanted(env, memory, observation)
        return self.knobs.replace(replicas=wanted), memory

    def wanted(
        self, env: ServeEnv, memory: RuleMemory, observation: ServeObservation
    ) -> tuple[jax.Array, RuleMemory]:
        """Replicas that the rule wants after an observation, int32, and its next memory."""
        reading = observed_reading(observation, self.fleet)
        wanted, after = wanted_by(self.fleet, self.kind, self.values, memory, reading)
        # A rule speaks when it has read a window; a fleet that is never scaled has its number.
        begins = (observation.step_index == 0) & (self.kind != 0)
        wanted = jnp.where(begins, env.deployment.num_gpus, wanted)
        memory = jax.tree.map(lambda old, new: jnp.where(begins, old, new), memory, after)
        return jnp.round(wanted).astype(jnp.int32), memory


def rule_of_setting(setting: Mapping[str, Any]) -> tuple[RuleSetting, Fleetwide]:
    """The rule and its fleet of ``setting``, which anchors keep.

    Raises:
      InputError: says what is missing, unknown or out of range.
    """
    rule = {name: value for name, value in setting.items() if name != "knobs"}
    return parse_rule(rule, "best_rule_setting")


def observed_reading(observation: ServeObservation, fleet: Fleetwide) -> Reading:
    """The reading of a metrics server, from an observation of the last window.

    A metrics server has histograms of latencies, of which an observation has two quantiles: TTFTs
    count as log-normal through their median and 99th percentile, and TPOTs as the mean time between
    tokens. Waiting prompts count as long as those that arrived. A queue is as long in time as the
    ready replicas take for it at the rate that they bear.
    """
    o = observation
    median, high = (jnp.maximum(ms / 1000.0, 1e-6) for ms in (o.p50_ttft_ms, o.p99_ttft_ms))
    spread = jnp.maximum(jnp.log(high / median) / _Z99, 1e-3)
    edges = jnp.log(jnp.asarray(TTFT_BUCKETS_S))
    ttft_above = norm.sf((edges - jnp.log(median)) / spread)
    tpot_above = (o.mean_itl_ms / 1000.0 > jnp.asarray(TPOT_BUCKETS_S)).astype(jnp.float32)
    busy = o.throughput_tps > 0.0
    bearing = fleet.requests_per_s * jnp.maximum(o.replicas_ready, 1.0)
    return Reading(
        waiting=o.queue_depth,
        running=o.active_requests,
        kv_usage=o.kv_cache_occupancy,
        waiting_tokens=o.queue_depth * o.mean_prompt_length,
        arrivals_rps=o.request_arrival_rate,
        ttft_p90_s=jnp.where(busy, histogram_quantile(TTFT_BUCKETS_S, ttft_above), 0.0),
        tpot_p90_s=jnp.where(busy, histogram_quantile(TPOT_BUCKETS_S, tpot_above), 0.0),
        coming_wait_s=o.queue_depth / bearing,
        serving=o.replicas_ready,
        starting=o.replicas_starting,
    )
