"""Advice of a tuned autoscaling rule, from which a learned policy of a fleet starts.

The policy keeps the rule's number of replicas, or its own last distance from that number, unless
its network insists on another. So a policy that has learned nothing is the rule, and training only
looks for what the rule misses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxserve.agents.scaling import ScalingPolicy, rule_of_setting
from jaxserve.env import ServeEnv
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.rule_form import RuleMemory
from jaxserve.scaling.setting import RuleSetting, parse_rule, rule_data
from jaxserve.tasks.anchors import Anchors
from jaxserve.types import ServeObservation


class AdvisingRule(NamedTuple):
    """A rule with its numbers, and the constants of its fleet; hashable."""

    setting: RuleSetting
    fleet: Fleetwide

    @classmethod
    def of_anchors(cls, anchors: Anchors | None) -> AdvisingRule | None:
        """The best rule of a task's anchors; None without a fleet or without anchors."""
        setting = None if anchors is None else anchors.best_rule_setting
        return None if setting is None else cls(*rule_of_setting(setting))

    @classmethod
    def parse(cls, data: Any, where: str) -> AdvisingRule:
        """The rule of ``data``; raises InputError as ``parse_rule``."""
        return cls(*parse_rule(data, where))

    @property
    def data(self) -> dict[str, Any]:
        """The rule for JSON, as ``parse`` reads it."""
        return rule_data(self.setting, self.fleet)

    def first(self, env: ServeEnv) -> Advice:
        """Advice before the first window: all replicas serve."""
        policy = self._policy(env)
        return Advice(policy.init(env), env.deployment.num_gpus.astype(jnp.int32))

    def next(self, env: ServeEnv, advice: Advice, observation: ServeObservation) -> Advice:
        """Advice for the next window.

        Args:
          observation: scalars of the window that has ended.
        """
        wanted, memory = self._policy(env).wanted(env, advice.memory, observation)
        return Advice(memory, wanted)

    def _policy(self, env: ServeEnv) -> ScalingPolicy:
        return ScalingPolicy.of(self.setting, env.locked, self.fleet)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Advice:
    """The rule's memory, and its answer."""

    memory: RuleMemory
    wanted: jax.Array
    """int32, replicas."""
