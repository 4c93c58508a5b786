"""One tick: nobody is lost, nothing goes below zero, and limits hold from any state."""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.arrays.batching import batch_last
from jaxserve.env import ServeEnv
from jaxserve.sim.fast.lines import AGE_KNOTS
from jaxserve.sim.fast.plan import plan_window
from jaxserve.sim.fast.state import init_sim
from jaxserve.sim.fast.tick import advance_tick
from jaxserve.sim.fast.tick_state import (
    Conditions,
    Lines,
    Queues,
    Tally,
    WindowPlan,
    empty_tally,
)
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS
from jaxserve.sim.traffic.workload import Arrivals
from jaxserve.spaces import ACTION_BOUNDS, KNOBS
from jaxserve.types import ServeAction
from tests.examples_drawn import FEW

CASES = 64  # a batch of unrelated situations
COUNT = 6


class Situation(NamedTuple):
    """What a window's first tick finds; leaves [CASES, ...]."""

    action: ServeAction
    tier: np.ndarray
    prefill_gpus: np.ndarray
    restarted: np.ndarray
    """share of the running sequences whose GPU goes down"""
    waiting: np.ndarray
    queues: Queues
    arrivals: np.ndarray


class Outcome(NamedTuple):
    """What it leaves; float64."""

    plan: WindowPlan
    lines: Lines
    queues: Queues
    tally: Tally


@functools.cache
def environment() -> ServeEnv:
    return jaxserve.make("adversarial_multitenant")


@batch_last
def one_tick(
    plan: WindowPlan, env: ServeEnv, waiting: jax.Array, queues: Queues, arrivals: jax.Array
):
    live = jnp.any(arrivals >= 0.0)
    conditions = Conditions(plan, env.deployment, env.workload.classes)
    lines, tally = Lines(waiting, jnp.zeros_like(waiting)), empty_tally(queues)
    number = jnp.zeros_like(plan.clock)
    return advance_tick(live, conditions, lines, queues, tally, arrivals, number)


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def tick(env: ServeEnv, at: Situation) -> tuple[WindowPlan, Lines, Queues, Tally]:
    """The first tick of a window."""
    state = init_sim(COUNT, jnp.float32(1.0))
    state = dataclasses.replace(state, tier=at.tier, prefill_gpus=at.prefill_gpus)
    traffic = Arrivals(
        counts=jnp.zeros((env.ticks, COUNT)),
        rate_rps=jnp.float32(0.0),
        regime=jnp.int32(0),
        acceptance_scale=jnp.float32(1.0),
    )
    classes = env.workload.classes
    plan = plan_window(state, at.action, traffic, env.deployment, classes, env.table, env.window_s)
    plan = dataclasses.replace(plan, restarted=at.restarted)
    return plan, *one_tick(plan, env, at.waiting, at.queues, at.arrivals)


def ticked(at: Situation) -> Outcome:
    found = tick(environment(), at)
    return Outcome(*jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), found))


def situations(seed: int) -> Situation:
    """Anything from an idle deployment to a hopeless one."""
    rng = np.random.default_rng(seed)

    def knob(name: str) -> np.ndarray:
        bound = ACTION_BOUNDS[name]
        if not bound.integer:
            return rng.uniform(bound.low, bound.high, CASES).astype(np.float32)
        return rng.integers(int(bound.low), int(bound.high) + 1, CASES).astype(np.int32)

    def counts(*shape: int) -> np.ndarray:
        """Sizes of all orders; about a third are nothing."""
        size = np.exp(rng.uniform(-3.0, 4.0, (CASES, *[1] * len(shape))))
        drawn = size * rng.exponential(size=(CASES, *shape))
        return (drawn * (rng.uniform(size=drawn.shape) < 0.7)).astype(np.float32)

    running, preempted = counts(COUNT), 0.2 * counts(COUNT)
    each = rng.uniform(20.0, 9000.0, (CASES, COUNT))
    by_age = 0.1 * counts(COUNT, len(AGE_KNOTS)) * (rng.uniform(size=(CASES, 1, 1)) < 0.7)
    return Situation(
        action=ServeAction(**{name: knob(name) for name in KNOBS}),
        tier=rng.integers(0, 3, CASES).astype(np.int32),
        prefill_gpus=rng.integers(0, 4, CASES).astype(np.int32),
        restarted=np.where(rng.uniform(size=CASES) < 0.2, rng.uniform(size=CASES), 0.0).astype(
            np.float32
        ),
        waiting=np.cumsum(by_age[..., ::-1], axis=-1)[..., ::-1].astype(np.float32),
        queues=Queues(
            running=running,
            context=(running * each).astype(np.float32),
            preempted=preempted,
            preempted_context=(preempted * each).astype(np.float32),
            recompute_context=(preempted * each).astype(np.float32),
        ),
        arrivals=np.floor(counts(COUNT)),
    )


def inside(waiting: np.ndarray, queues: Queues) -> np.ndarray:
    """Requests in the deployment, by class."""
    return np.asarray(waiting[..., 0] + queues.running + queues.preempted, np.float64)


seeds = st.integers(0, 100_000)


@given(seeds)
def test_nobody_is_lost(seed: int) -> None:
    """Who was there or came is done, turned away or still there, in every class."""
    at = situations(seed)
    after = ticked(at)
    before = inside(at.waiting, at.queues) + at.arrivals
    out = after.tally.completed + after.tally.rejected
    size = 1.0 + before.sum(axis=1, keepdims=True)
    assert (np.abs(before - inside(after.lines.waiting, after.queues) - out) / size).max() <= 1e-6


@given(seeds)
def test_nothing_is_negative_or_infinite(seed: int) -> None:
    """Counts stay counts from any state, and older ages never hold more than younger ones."""
    after = ticked(situations(seed))
    for leaf in jax.tree.leaves((after.lines, after.queues, after.tally)):
        assert np.isfinite(leaf).all()
        assert leaf.min() >= -1e-4  # rounding of what a used-up resource leaves
    waiting = after.lines.waiting
    assert (np.diff(waiting, axis=-1) <= 1e-6 * (1.0 + waiting[..., :1])).all()


@given(seeds)
def test_slots_and_memory_are_limits(seed: int) -> None:
    """Nobody joins a batch at its cap, and what exceeds the KV budget is gone after the tick."""
    at = situations(seed)
    after = ticked(at)
    running = after.queues.running.sum(axis=1)
    slots = after.plan.decode_gpus * after.plan.batch_cap
    assert (running <= np.maximum(slots, at.queues.running.sum(axis=1)) * (1.0 + 1e-5)).all()
    used = (after.queues.context + BLOCK_SLACK_TOKENS * after.queues.running).sum(axis=1)
    assert (used <= after.plan.kv_tokens * (1.0 + 1e-4)).all()


@given(seeds, st.booleans())
def test_the_lowest_priority_loses_its_memory_first(seed: int, routed: bool) -> None:
    """With priority routing no group is evicted more than one below it; without, all are alike."""
    at = situations(seed)
    empty = np.zeros((CASES, COUNT), np.float32)
    after = ticked(
        at._replace(
            action=dataclasses.replace(
                at.action,
                priority_routing=np.full(CASES, routed, np.int32),
                kv_budget_fraction=np.full(CASES, 0.1, np.float32),
            ),
            prefill_gpus=np.zeros(CASES, np.int32),
            queues=dataclasses.replace(
                at.queues, preempted=empty, preempted_context=empty, recompute_context=empty
            ),
        )
    )
    evicted, running = after.queues.preempted, after.queues.running
    assert after.tally.preemptions.max() > 1.0
    present = running + evicted > 1e-2
    share = np.where(present, evicted / np.maximum(running + evicted, 1e-2), np.nan)
    group = np.asarray(environment().workload.classes.priority) * routed
    for lower, higher in ((1, 0), (2, 1), (2, 0), (0, 0), (1, 1), (2, 2)):
        most = share[:, group == higher].max(axis=1, initial=0.0, where=present[:, group == higher])
        least = share[:, group == lower].min(axis=1, initial=1.0, where=present[:, group == lower])
        assert (most <= least + 1e-3).all()


@FEW
@given(seeds)
def test_lost_memory_is_computed_again(seed: int) -> None:
    """Preempted sequences whose KV is gone take prefill's time from new requests; in a split those
    that only wait for a decoding GPU do not."""
    at = situations(seed)
    nothing = np.zeros((CASES, COUNT), np.float32)
    at = at._replace(prefill_gpus=np.maximum(at.prefill_gpus, 1))
    gone, kept = (
        ticked(at._replace(queues=dataclasses.replace(at.queues, recompute_context=context)))
        for context in (at.queues.preempted_context, nothing)
    )
    left = gone.queues.recompute_context.sum(axis=1)
    assert (left < at.queues.preempted_context.sum(axis=1) - 1.0).any()
    admitted = (gone.tally.admitted.sum(1), kept.tally.admitted.sum(1))
    assert (admitted[0] <= admitted[1] * (1.0 + 1e-4) + 1e-3).all()
    assert (admitted[0] < admitted[1] - 0.1).any()


@given(seeds)
def test_a_restart_takes_everybodys_memory(seed: int) -> None:
    """Where all GPUs go down, all that ran is preempted and nobody holds KV."""
    at = situations(seed)
    after = ticked(at._replace(restarted=np.ones(CASES, np.float32)))
    size = 1.0 + inside(at.waiting, at.queues).sum(axis=1, keepdims=True)
    assert (np.abs(after.queues.running) / size).max() <= 1e-4
    left = after.queues.context.sum(axis=1)
    assert (left <= 1e-4 * (1.0 + at.queues.context.sum(axis=1))).all()


def test_an_idle_deployment_stays_idle() -> None:
    """Without requests nothing is admitted, completed or evicted."""
    at = situations(0)
    nobody = jax.tree.map(np.zeros_like, (at.waiting, at.queues, at.arrivals))
    after = ticked(at._replace(waiting=nobody[0], queues=nobody[1], arrivals=nobody[2]))
    for leaf in jax.tree.leaves((after.lines, after.queues)):
        assert not leaf.any()
    for name in ("rejected", "admitted", "completed", "preemptions"):
        assert not getattr(after.tally, name).any(), name
