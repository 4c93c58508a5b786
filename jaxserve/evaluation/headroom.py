"""Headroom: the measured gain of adapting on a task, its anchors, and the conflict between regimes.

    headroom = (switch-aware oracle - best static) / |best static|

on test seeds, in the task's own objective. The best static setting is chosen on training seeds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.choice import in_one_program
from jaxserve.agents.open_loop import RandomPolicy, default_policy, exploit_policies
from jaxserve.agents.oracle import oracle_plans
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress
from jaxserve.agents.regimes import regime_env
from jaxserve.agents.rollout import rollout
from jaxserve.agents.scaling_search import (
    RULE_EPISODES,
    TunedRule,
    clairvoyant_rewards,
    policy_rewards,
    tune_rules,
)
from jaxserve.agents.search import (
    SearchEffort,
    regime_settings,
    search_static,
    static_objective,
)
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at
from jaxserve.spaces import ACTION_BOUNDS
from jaxserve.tasks.anchors import Anchors
from jaxserve.tasks.spec import TaskSpec

MIN_SPAN = 0.02
"""Least share of the best static reward between scores of 0 and 1: the scale of a task without
headroom would otherwise be a step."""


@dataclass(frozen=True)
class SearchBudget:
    """Effort of the searches; the defaults are what anchors are computed with."""

    candidates: int = 512
    training_episodes: int = 512
    """episodes at most; the search for the best static setting ends when it is found."""
    test_episodes: int = 32
    sweeps: int = 2
    generations: int = 24


@dataclass(frozen=True)
class Headroom:
    """Result of ``measure_headroom``. Values are mean rewards per window."""

    spec: TaskSpec
    env: ServeEnv
    """environment that was played."""
    static: np.ndarray
    """int32[7], grid indices of the best static setting."""
    by_regime: np.ndarray
    """int32[G, 6], the best setting of each of the task's G regimes."""
    matrix: np.ndarray
    """float[G + 1, G]: each regime's best setting, then the best static one,
    in each regime held for whole episodes of validation seeds."""
    values: dict[str, float]
    """mean over test episodes of random, default, best_static, oracle and the exploits."""
    budget: SearchBudget
    rule: TunedRule | None = None
    """the best autoscaling rule of a task with a fleet."""

    @property
    def headroom(self) -> float:
        """Gain of the oracle as a share of the best static setting's size, infinite if it is 0."""
        static = self.values["best_static"]
        gain = self.values["oracle"] - static
        return gain / abs(static) if static else float("inf")

    def anchors(self) -> Anchors:
        """The task's anchors, ready to be written."""
        # Locked knobs have one grid point, which is not their value.
        action = self.env.effective_action(action_at(jnp.asarray(self.static)))
        return Anchors(
            task=self.spec.name,
            task_version=self.spec.version,
            task_digest=self.spec.digest,
            random=self.values["random"],
            best_static=self.values["best_static"],
            oracle=max(
                self.values["oracle"],
                self.values["best_static"] + MIN_SPAN * abs(self.values["best_static"]),
            ),
            best_static_action={
                knob: bound.number(round(float(getattr(action, knob)), 6))
                for knob, bound in ACTION_BOUNDS.items()
            },
            provenance={
                "command": f"jaxserve search {self.spec.file or self.spec.name}",
                "budget": dataclasses.asdict(self.budget),
                "split": "test",
                "oracle_measured": round(self.values["oracle"], 6),
            },
            best_rule=self.values.get("best_rule"),
            best_rule_setting=None if self.rule is None else self.rule.policy.setting(),
        )


def measure_headroom(
    setup: TaskSetup, budget: SearchBudget | None = None, progress: Progress | None = None
) -> Headroom:
    """Searches the best static setting and the oracle of a task and plays them on test episodes.

    Args:
      budget: default is ``SearchBudget()``.
    """
    budget = budget or SearchBudget()
    spec = setup.spec
    training_env, training = setup.search_episodes(budget.training_episodes)
    env, test = setup.episodes("test", budget.test_episodes)
    effort = SearchEffort(candidates=budget.candidates)
    searched = search_static(training_env, training, effort=effort, progress=progress)
    static = searched.setting
    regimes = len(spec.regimes)
    by_regime = regime_settings(
        training_env, training[:8], static, regimes=regimes, progress=progress
    )
    settings = np.concatenate([by_regime, static[None]])
    _, held_out = setup.episodes("validation", 8)
    matrix = np.stack(
        [
            static_objective(regime_env(training_env, regime), settings, held_out).mean(1)
            for regime in range(regimes)
        ],
        axis=1,
    )
    values = {"best_static": float(static_objective(env, static[None], test).mean())}
    rule = None
    if env.deployment.fleet is None:
        _, oracle = oracle_plans(
            env,
            test,
            static,
            by_regime,
            sweeps=budget.sweeps,
            generations=budget.generations,
            progress=progress,
        )
    else:
        knobs = env.effective_action(action_at(jnp.asarray(static)))
        rule = tune_rules(training_env, training[:RULE_EPISODES], knobs, progress=progress)
        values["best_rule"] = float(policy_rewards(env, [rule.policy], test).mean())
        plans = clairvoyant_rewards(env, test, rule.policy.knobs, rule.policy.fleet.requests_per_s)
        # A clairvoyant would play the rule where that is better than all its plans.
        oracle = np.maximum(plans, policy_rewards(env, [rule.policy], test)[0])
    values["oracle"] = float(oracle.mean())
    others = {"random": RandomPolicy(), "default": default_policy(env), **exploit_policies()}
    for name, player in zip(others, in_one_program(list(others.values())), strict=True):
        values[name] = _mean_reward(env, player, test)
    return Headroom(spec, env, static, by_regime, matrix, values, budget, rule)


def _mean_reward(env: ServeEnv, policy: Policy, keys: jax.Array) -> float:
    return float(np.mean(np.asarray(rollout(env, policy, keys).timesteps.reward)))
