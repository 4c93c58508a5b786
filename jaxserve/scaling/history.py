"""Readings of a fleet's metrics, and what rules remember of them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reading:
    """Metrics of a window as a metrics server has them at its end; float32 scalars."""

    waiting: jax.Array
    """requests that wait, over all replicas."""
    running: jax.Array
    """requests in batches, over all replicas."""
    kv_usage: jax.Array
    """share of the KV blocks in use, mean over the replicas."""
    waiting_tokens: jax.Array
    """prompt tokens of the waiting requests."""
    arrivals_rps: jax.Array
    """requests that arrived, per second."""
    ttft_p90_s: jax.Array
    """90th percentile of the time to first token over a minute as a histogram tells it, s; 0 where
    none came."""
    tpot_p90_s: jax.Array
    """the same of the time per output token, s; 0 where none ended."""
    coming_wait_s: jax.Array
    """time that a request which arrives now will wait, by Little's law: waiting requests over first
    tokens a second, s."""
    serving: jax.Array
    """replicas that serve."""
    starting: jax.Array
    """replicas that start."""

    @property
    def provisioned(self) -> jax.Array:
        """Replicas that serve or start."""
        return self.serving + self.starting


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fleetwide:
    """Constants that rules are given. All numbers but the length of a window are leaves, so that
    one compiled program serves fleets of any numbers."""

    window_s: float = dataclasses.field(metadata={"static": True})
    """seconds between two readings."""
    most: int
    """greatest number of replicas."""
    least: int
    """least number of replicas."""
    group: int
    """GPUs of a replica."""
    requests_per_s: float
    """requests a second that a replica bears inside the objectives."""
    prefill_tokens_per_s: float
    """prompt tokens a second that a replica prefills."""
    kv_tokens: float
    """KV tokens that a replica has room for."""
    ttft_slo_s: float
    """objective on the time to first token, s."""
    tpot_slo_s: float
    """objective on the time per output token, s."""

    def windows(self, seconds: float) -> int:
        """Windows that a time spans, at least one."""
        return max(round(seconds / self.window_s), 1)

    def clip(self, wanted: jax.Array) -> jax.Array:
        """Replicas within the fleet's bounds; a number that is none counts as the least."""
        return jnp.clip(jnp.nan_to_num(wanted, nan=self.least), self.least, self.most)


def fresh(length: int, value: float | jax.Array) -> jax.Array:
    """float32[length], a history that holds ``value`` throughout, the newest entry first."""
    return jnp.full(length, jnp.asarray(value, jnp.float32))


def push(history: jax.Array, value: jax.Array) -> jax.Array:
    """The history with a new entry in place of the oldest."""
    return jnp.concatenate([jnp.asarray(value, jnp.float32)[None], history[:-1]])


def mean_over(history: jax.Array, seconds: jax.Array, window_s: float) -> jax.Array:
    """Mean of the entries of the last ``seconds``; of the newest one at least."""
    inside = _inside(history, seconds, window_s)
    return jnp.sum(jnp.where(inside, history, 0.0)) / jnp.sum(inside)


def most_over(history: jax.Array, seconds: jax.Array, window_s: float) -> jax.Array:
    """Greatest entry of the last ``seconds``; the newest one at least."""
    return jnp.max(jnp.where(_inside(history, seconds, window_s), history, -jnp.inf))


def least_over(history: jax.Array, seconds: jax.Array, window_s: float) -> jax.Array:
    """Least entry of the last ``seconds``; the newest one at least."""
    return jnp.min(jnp.where(_inside(history, seconds, window_s), history, jnp.inf))


def _inside(history: jax.Array, seconds: jax.Array, window_s: float) -> jax.Array:
    age_s = window_s * jnp.arange(len(history))
    return age_s < jnp.maximum(seconds, 0.5 * window_s)
