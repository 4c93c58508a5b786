"""The form of an autoscaling rule: its parameters, its memory, and what several rules share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp

from jaxserve.scaling.history import Fleetwide, Reading, fresh, least_over, most_over, push

LONGEST_S = 1800.0
"""Longest time that a rule remembers, s."""


@dataclass(frozen=True)
class Parameter:
    """A number of a rule that tuning may change."""

    default: float
    """value of the rule's source."""
    low: float
    high: float
    """bounds of tuning; values between are tried evenly in their logarithm."""
    meaning: str
    unit: str


def parameter(default: float, low: float, high: float, meaning: str, unit: str = "") -> Any:
    """A field of a rule: the arguments of ``Parameter``."""
    described = Parameter(default, low, high, meaning, unit)
    return dataclasses.field(default=default, metadata={"parameter": described})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RuleMemory:
    """Memory of a rule from window to window; histories have their newest entry first."""

    desired: jax.Array
    """float32[N], replicas that the rule's formula asked for."""
    wanted: jax.Array
    """float32[N], replicas that were wanted in the end."""
    signal: jax.Array
    """float32[N], what the rule averages."""
    since_s: jax.Array
    """float32, seconds since the rule acted or, by rule, since a threshold has been passed."""
    level: jax.Array
    """float32[2], state of a predictor, or seconds above and below a threshold."""
    covariance: jax.Array
    """float32[2, 2], of a predictor's state; 0 before it has seen anything."""


class ScalingRule(Protocol):
    """An autoscaling rule; a frozen dataclass of floats that is a pytree."""

    name: ClassVar[str]
    source: ClassVar[str]
    """published form and defaults."""

    def want(
        self, fleet: Fleetwide, memory: RuleMemory, reading: Reading
    ) -> tuple[jax.Array, RuleMemory]:
        """Replicas that are wanted from now on, float32, and the next memory.

        Args:
          fleet: constants of the fleet.
          memory: what the rule remembers.
          reading: metrics of the window that has just ended.
        """
        ...


def parameters(rule: type | ScalingRule) -> dict[str, Parameter]:
    """The parameters of a rule by name."""
    fields: Any = dataclasses.fields(rule)  # pyright: ignore[reportArgumentType]
    return {field.name: field.metadata["parameter"] for field in fields}


def first_memory(fleet: Fleetwide, wanted: float | jax.Array) -> RuleMemory:
    """Memory of a rule at the start, when ``wanted`` replicas serve."""
    length = fleet.windows(LONGEST_S)
    return RuleMemory(
        desired=fresh(length, wanted),
        wanted=fresh(length, wanted),
        signal=fresh(length, 0.0),
        since_s=jnp.float32(0.0),
        level=jnp.zeros(2),
        covariance=jnp.zeros((2, 2)),
    )


def settled(
    fleet: Fleetwide,
    memory: RuleMemory,
    desired: jax.Array,
    *,
    up_window_s: jax.Array | float = 0.0,
    down_window_s: jax.Array | float = 0.0,
    up_share: float = 1.0,
    up_pods: float = 4.0,
    up_period_s: float = 15.0,
    down_pods: float = jnp.inf,
    down_period_s: float = 15.0,
) -> tuple[jax.Array, RuleMemory]:
    """The number of replicas that the Kubernetes HPA makes of its formula's answers.

    The HPA goes up to the least answer of ``up_window_s`` and down to the greatest of
    ``down_window_s``, up by at most max(``up_share`` of what there is, ``up_pods``) in
    ``up_period_s`` and down by ``down_pods`` in ``down_period_s`` (kubernetes/website,
    horizontal-pod-autoscale.md; the HPA's own defaults are 0 and 300 s, max(100 %, 4) in 15 s, and
    no limit downwards).
    """
    desired = fleet.clip(desired)
    history = push(memory.desired, desired)
    seconds = jnp.float32
    low = least_over(history, seconds(up_window_s), fleet.window_s)
    high = most_over(history, seconds(down_window_s), fleet.window_s)
    now = memory.wanted[0]
    wanted = jnp.where(now < low, low, jnp.where(now > high, high, now))
    before_up = least_over(memory.wanted, seconds(up_period_s), fleet.window_s)
    before_down = most_over(memory.wanted, seconds(down_period_s), fleet.window_s)
    most = before_up + jnp.maximum(up_share * before_up, up_pods)
    wanted = jnp.minimum(wanted, most)
    wanted = fleet.clip(jnp.maximum(wanted, before_down - down_pods))
    return kept(memory, wanted, desired=history)


def kept(memory: RuleMemory, wanted: jax.Array, **changes: Any) -> tuple[jax.Array, RuleMemory]:
    """The answer and the memory with it."""
    return wanted, dataclasses.replace(memory, wanted=push(memory.wanted, wanted), **changes)


def by_ratio(now: jax.Array, load: jax.Array, target: jax.Array | float) -> jax.Array:
    """HPA's formula on the sum of a metric: ``ceil(load / target)``, or ``now`` within 10 %."""
    ratio = load / (now * target)
    return jnp.where(jnp.abs(ratio - 1.0) <= 0.1, now, jnp.ceil(load / target - 1e-4))
