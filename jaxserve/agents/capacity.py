"""Capacity planning: the service of a configuration at a load, from load tests.

An operator knows the latency table of model and GPU, memory sizes, delays, SLOs and values before
the first request. The traffic is estimated from what is observed; its regimes stay hidden.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxserve.env import ServeEnv
from jaxserve.sim.table.lookup import (
    contract,
    itl_s,
    prefill_added_s_per_token,
    prefill_s_per_token,
)
from jaxserve.spaces import ACTION_BOUNDS

DEPTHS = int(ACTION_BOUNDS["speculation_depth"].high) + 1
_BALANCE_STEPS = 8  # of the fixed point; its map is averaged with its argument, so it contracts
_TPOT_SPREAD = 0.15  # standard deviation of log TPOT over the requests of one setting
_WAIT_VARIATION = 1.5  # (1 + cv^2) / 2 of prefill times; log-normal chat prompts have cv^2 of 2
_MAX_BUSY = 0.98  # keeps the queueing formula finite


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Load:
    """Traffic as an operator estimates it; float32 scalars but for the vectors."""

    rate_rps: jax.Array
    """arrivals per second."""
    prompt_tokens: jax.Array
    """mean prompt length."""
    output_tokens: jax.Array
    """mean output length."""
    group_share: jax.Array
    """float32[3], share of the arrivals in each priority group, highest first."""
    tokens_per_step: jax.Array
    """float32[9], expected tokens of a decode step at speculation depth 0..8."""

    @property
    def context_tokens(self) -> jax.Array:
        """Mean KV tokens of a running sequence: its prompt and half of its output."""
        return self.prompt_tokens + 0.5 * self.output_tokens


def decode_speed(env: ServeEnv, load: Load, tier: jax.Array, batch: jax.Array) -> jax.Array:
    """float32[9]: tokens per second of one sequence at depth 0..8, undisturbed by prefill.

    What a verify step yields over what it costs at ``batch`` sequences per GPU: the goodput that
    SmartSpec (arXiv:2406.14066) maximises, per sequence.
    """
    seconds = jax.vmap(
        lambda depth: itl_s(contract(env.table, depth, tier), batch, load.context_tokens)
    )(jnp.arange(DEPTHS))
    return load.tokens_per_step / seconds


def value_share(
    env: ServeEnv, load: Load, tier: jax.Array, prefill_gpus: jax.Array, gpus: jax.Array
) -> jax.Array:
    """Share of the arriving value that a configuration would earn in steady state, 0..1.

    The batch is the one at which Little's law holds, without a cap; the depth is the fastest there.

    Args:
      tier: quantisation tier.
      prefill_gpus: GPUs that only prefill, 0 = colocated.
      gpus: GPUs in all.
    """
    split = prefill_gpus > 0
    prefill_gpus = jnp.where(split, prefill_gpus, gpus).astype(jnp.float32)
    decode_gpus = jnp.where(split, jnp.maximum(gpus - prefill_gpus, 1e-3), gpus)
    rate_per_gpu = load.rate_rps / decode_gpus
    kv_tokens = env.deployment.kv_pool_tokens[tier, 0]
    each = env.deployment.kv_of(load.context_tokens)
    most = jnp.clip(kv_tokens / each, 1.0, ACTION_BOUNDS["batch_cap"].high)
    plain = contract(env.table, jnp.int32(0), tier)

    def prefill_s(batch: jax.Array) -> jax.Array:
        alone = prefill_s_per_token(plain, load.prompt_tokens)
        beside = prefill_added_s_per_token(plain, batch, load.prompt_tokens)
        return load.prompt_tokens * jnp.where(split, alone, beside)

    def tpot_s(batch: jax.Array) -> jax.Array:
        stolen = jnp.where(split, 0.0, rate_per_gpu * prefill_s(batch))
        speed = jnp.max(decode_speed(env, load, tier, batch))
        return 1.0 / (speed * jnp.maximum(1.0 - stolen, 1.0 - _MAX_BUSY))

    def wanted(batch: jax.Array) -> jax.Array:
        """Sequences that decode by Little's law: arrivals in the time that one of them decodes."""
        return rate_per_gpu * load.output_tokens * tpot_s(batch)

    # A loop, as one that is written out takes most of what a rollout takes to compile.
    batch = jax.lax.fori_loop(
        0,
        _BALANCE_STEPS,
        lambda _, batch: jnp.sqrt(batch * jnp.clip(wanted(batch), 1.0, most)),
        jnp.float32(1.0),
    )
    own_s = prefill_s(batch)
    prefill_busy = load.rate_rps * own_s / prefill_gpus
    served = 1.0 / jnp.maximum(jnp.maximum(wanted(batch) / most, prefill_busy), 1.0)

    # Waiting for a prefill server has an exponential tail (M/G/n).
    busy = jnp.minimum(prefill_busy, _MAX_BUSY)
    wait_s = _WAIT_VARIATION * own_s / (prefill_gpus * (1.0 - busy))
    slack_s = jnp.maximum(env.slo.ttft_s - own_s - env.deployment.frontend_s, 0.0)
    ttft_met = 1.0 - busy * jnp.exp(-slack_s / wait_s)
    logistic_scale = _TPOT_SPREAD * 3.0**0.5 / jnp.pi
    tpot_met = jax.nn.sigmoid(jnp.log(env.slo.tpot_s / tpot_s(batch)) / logistic_scale)

    weight = env.reward.value * load.group_share[env.workload.classes.priority]
    earned = weight * env.reward.quality[tier] * ttft_met * tpot_met
    # An overloaded configuration also answers late, so that overload counts twice.
    return served**2 * jnp.sum(earned) / jnp.maximum(jnp.sum(weight), 1e-9)
