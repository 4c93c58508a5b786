"""Anchors of fleets: the best tuned rule, and a clairvoyant that knows the rates to come."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.objective import horizon_of, in_chunks, on_all_devices
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress
from jaxserve.agents.rollout import windows_of
from jaxserve.agents.scaling import ScalingPolicy
from jaxserve.env import ServeEnv
from jaxserve.grids import action_at, grid_sizes, nearest_indices
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.rules import RULES
from jaxserve.scaling.setting import RuleSetting, near_settings, spread_settings
from jaxserve.seeds import policy_key
from jaxserve.sim.table.lookup import contract, prefill_s_per_token
from jaxserve.sim.traffic.workload import draw_arrivals
from jaxserve.spaces import KNOBS
from jaxserve.types import ServeAction

ROUNDS = ((8, 24), (32, 8), (128, 1))
"""Training episodes that the settings of a round are played on, and how many of them go on."""
RULE_EPISODES = ROUNDS[-1][0]
BORNE = 0.95
"""Share of the requests inside the objectives at which a replica bears a rate."""
_RATES, _RATE_WINDOWS = 24, 120
_MOST_CHANGES = 8
_LEAST_GAIN = 1e-4
"""Gain in reward for which another knob is changed."""
MARGINS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Loads of a replica that a clairvoyant plans with, as shares of what it bears."""
HOLDS = (0, 4, 16, 40)
"""Windows beyond a start-up over which a clairvoyant covers the largest rate."""


@dataclass(frozen=True)
class TunedRule:
    """The best rule of a search."""

    setting: RuleSetting
    policy: ScalingPolicy
    reward: float
    """mean reward per window on the training episodes of the last round."""


def tune_rules(
    env: ServeEnv,
    keys: jax.Array,
    knobs: ServeAction,
    kinds: Sequence[str] = tuple(RULES),
    seed: int = 0,
    progress: Progress | None = None,
) -> TunedRule:
    """Tunes rules on training episodes, by the task's own reward.

    Defaults and settings all over the bounds of every rule are played on a few episodes, the best
    ones and settings around the first of them on more, until one is left. Where the task opens
    other knobs as well, single changes of these follow while they gain, and the rounds once more.

    Args:
      env: a task whose deployment has a fleet.
      keys: typed training keys, as many as the last round plays.
      knobs: the knobs beside the replicas, where the search begins.
    """
    others = [
        place
        for place, size in enumerate(grid_sizes(env))
        if size > 1 and KNOBS[place] != "replicas"
    ]
    found = _tune(env, keys, knobs, kinds, seed, progress)
    if not others:
        return found
    changed = _tune_knobs(env, keys[: ROUNDS[1][0]], found.policy, others, progress)
    return _tune(env, keys, changed.knobs, kinds, seed, progress)


def _tune(
    env: ServeEnv,
    keys: jax.Array,
    knobs: ServeAction,
    kinds: Sequence[str],
    seed: int,
    progress: Progress | None,
) -> TunedRule:
    fleet = fleet_constants(env, knobs)
    settings = [each for kind in kinds for each in spread_settings(kind, seed)]
    rewards = np.zeros(len(settings))
    for number, (episodes, kept) in enumerate(ROUNDS):
        if progress:
            progress("tuning scaling rules", number, len(ROUNDS))
        policies = [ScalingPolicy.of(each, knobs, fleet) for each in settings]
        rewards = policy_rewards(env, policies, keys[:episodes]).mean(axis=1)
        order = np.argsort(-rewards, kind="stable")[:kept]
        settings, rewards = [settings[i] for i in order], rewards[order]
        if kept > 1:
            near = [near_settings(each.kind, each, seed) for each in settings[:4]]
            settings = list(dict.fromkeys([*settings, *(each for row in near for each in row)]))
    best = settings[0]
    return TunedRule(best, ScalingPolicy.of(best, knobs, fleet), float(rewards[0]))


def _tune_knobs(
    env: ServeEnv,
    keys: jax.Array,
    policy: ScalingPolicy,
    others: Sequence[int],
    progress: Progress | None,
) -> ScalingPolicy:
    """The policy after the single change of a knob that gains most, again and again."""
    sizes = grid_sizes(env)
    places = np.array(nearest_indices(policy.knobs))
    best = -np.inf
    for change in range(_MOST_CHANGES):
        if progress:
            progress("tuning the other knobs", change, _MOST_CHANGES)
        rows = [places]
        for place in others:
            for value in range(sizes[place]):
                rows.append(np.where(np.arange(len(places)) == place, value, places))
        policies = [dataclasses.replace(policy, knobs=action_at(jnp.asarray(r))) for r in rows]
        rewards = policy_rewards(env, policies, keys).mean(axis=1)
        if rewards.max() <= max(best, rewards[0]) + _LEAST_GAIN:
            break
        places, best = rows[int(rewards.argmax())], float(rewards.max())
    return dataclasses.replace(policy, knobs=action_at(jnp.asarray(places)))


def policy_rewards(
    env: ServeEnv, policies: Sequence[Policy], keys: jax.Array
) -> NDArray[np.float64]:
    """float64[P, E]: mean reward per window of policies of one kind in episodes."""
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)
    of_policy = np.repeat(np.arange(len(policies)), len(keys))
    of_episode = np.tile(np.arange(len(keys)), len(policies))
    lanes = jax.tree.map(lambda leaf: leaf[of_policy], stacked)
    found = in_chunks(
        lambda *batched: _policy_rewards(env, *batched, horizon=horizon_of(env)),
        lanes,
        keys[of_episode],
    )
    return np.asarray(found, np.float64).reshape(len(policies), len(keys))


@functools.partial(jax.jit, static_argnames="horizon")
def _policy_rewards(env: ServeEnv, policies: Policy, keys: jax.Array, horizon: int) -> jax.Array:
    """float32[N], mean rewards of one policy in one episode each."""

    def episode(env: ServeEnv, policy: Policy, key: jax.Array) -> jax.Array:
        state, timestep = env.reset(key)

        def window(carry, index):
            state, memory, observation, total = carry
            action, memory = policy.act(env, memory, observation, policy_key(key, index))
            state, timestep = env.step(state, action)
            return (state, memory, timestep.observation, total + timestep.reward), None

        carry = (state, policy.init(env), timestep.observation, jnp.float32(0.0))
        (*_, total), _ = jax.lax.scan(window, carry, jnp.arange(horizon))
        return total / horizon

    return on_all_devices(episode, env, policies, keys)


def fleet_constants(env: ServeEnv, knobs: ServeAction) -> Fleetwide:
    """Constants that rules are given on a task."""
    classes, mix = env.workload.classes, np.asarray(env.workload.regimes.class_mix)[0]
    prompt = jnp.float32(mix @ np.asarray(classes.prompt_tokens))
    table = contract(env.table, jnp.int32(0), jnp.int32(0))
    used = mix > 0.0
    return Fleetwide(
        window_s=env.window_s,
        most=round(float(env.deployment.num_gpus)),
        least=1,
        group=1,
        requests_per_s=borne_rate(env, knobs),
        prefill_tokens_per_s=1.0 / float(prefill_s_per_token(table, prompt)),
        kv_tokens=float(np.asarray(env.deployment.kv_pool_tokens)[0, 0]),
        ttft_slo_s=float(np.asarray(env.slo.ttft_s)[used].min()),
        tpot_slo_s=float(np.asarray(env.slo.tpot_s)[used].min()),
    )


def borne_rate(env: ServeEnv, knobs: ServeAction) -> float:
    """Requests a second of steady traffic that a replica serves with ``BORNE`` of the requests
    inside their objectives: the largest of rates in steps of a twentieth."""
    regimes = env.workload.regimes
    mean = float(regimes.rate_rps[0])
    rates = mean * np.geomspace(0.02, 2.0, _RATES)
    for _ in range(2):
        found = np.asarray(_good_shares(env, knobs, jnp.asarray(rates, jnp.float32)))
        last = max(int(np.logical_and.accumulate(found >= BORNE).sum()) - 1, 0)
        low, high = rates[last], rates[min(last + 1, _RATES - 1)]
        rates = np.geomspace(low, high, _RATES)
    return float(low)


@jax.jit
def _good_shares(env: ServeEnv, knobs: ServeAction, rates: jax.Array) -> jax.Array:
    """float32[n], share of the requests inside their objectives on one replica at steady rates."""
    one = dataclasses.replace(env.deployment, num_gpus=jnp.float32(1.0), fleet=None)

    def share(rate: jax.Array) -> jax.Array:
        regimes = dataclasses.replace(
            env.workload.regimes, rate_rps=jnp.full_like(env.workload.regimes.rate_rps, rate)
        )
        workload = dataclasses.replace(env.workload, regimes=regimes, demand=None)
        steady = dataclasses.replace(env, deployment=one, workload=workload)
        metrics = windows_of(steady, knobs, jax.random.key(0), _RATE_WINDOWS)
        ended = metrics.completed + metrics.rejected + metrics.lost
        return jnp.sum(metrics.good) / jnp.maximum(jnp.sum(ended), 1e-6)

    return jax.vmap(share)(rates)


def clairvoyant_rewards(
    env: ServeEnv, keys: jax.Array, knobs: ServeAction, borne_rps: float
) -> NDArray[np.float64]:
    """float64[E]: the best mean reward in each episode of plans that know its rates.

    A plan wants, in every window, the replicas that the largest rate from now until a start-up and
    ``HOLDS`` further windows have passed asks for, each loaded with a share of what it bears. Each
    episode has the plan that turns out best in it.

    Args:
      knobs: the knobs beside the replicas.
      borne_rps: requests a second that a replica bears.
    """
    horizon = horizon_of(env)
    fleet = env.deployment.fleet
    assert fleet is not None
    lead = int(np.ceil(float(fleet.start_most_s) / env.window_s))
    rates = np.asarray(_rates(env, keys, horizon), np.float64)
    plans = []
    for margin, hold in product(MARGINS, HOLDS):
        ahead = np.pad(rates, ((0, 0), (0, lead + hold)), mode="edge")
        largest = np.lib.stride_tricks.sliding_window_view(ahead, lead + hold + 1, axis=1)
        wanted = np.ceil(largest.max(axis=2) / (margin * borne_rps) - 1e-9)
        plans.append(np.clip(wanted, 1, fleet.places))

    count = len(plans)
    found = in_chunks(
        lambda *batched: _plan_rewards(env, knobs, *batched),
        jnp.asarray(np.concatenate(plans), jnp.int32),
        keys[np.tile(np.arange(len(keys)), count)],
    )
    return np.asarray(found, np.float64).reshape(count, len(keys)).max(axis=0)


@jax.jit
def _plan_rewards(
    env: ServeEnv, knobs: ServeAction, wanted: jax.Array, keys: jax.Array
) -> jax.Array:
    """float32[N], mean rewards of plans int32[N, T] in one episode each."""

    def episode(env: ServeEnv, wanted: jax.Array, key: jax.Array) -> jax.Array:
        def window(carry, count):
            state, total = carry
            state, timestep = env.step(state, knobs.replace(replicas=count))
            return (state, total + timestep.reward), None

        carry = (env.reset(key)[0], jnp.float32(0.0))
        (_, total), _ = jax.lax.scan(window, carry, wanted)
        return total / len(wanted)

    return on_all_devices(episode, env, wanted, keys)


@functools.partial(jax.jit, static_argnames="horizon")
def _rates(env: ServeEnv, keys: jax.Array, horizon: int) -> jax.Array:
    """float32[E, T], expected arrivals per second in every window."""

    def one(key: jax.Array) -> jax.Array:
        def window(state, index):
            state, arrivals = draw_arrivals(env.workload, state, index, env.ticks, env.window_s)
            return state, arrivals.rate_rps

        return jax.lax.scan(window, env.reset(key)[0].workload, jnp.arange(horizon))[1]

    return jax.vmap(one)(keys)
