"""Admission: nothing is given out twice, and a full queue sheds its newest."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast import admission
from jaxserve.sim.fast.lines import AGE_KNOTS, age_by_one_tick, fifo_cut
from jaxserve.sim.fast.tick_state import Admission, Queues, Room, Timing, WindowPlan
from jaxserve.sim.fast.waiting_times import Wait
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS
from tests.sim.fast.plans import CLASSES, COUNT, ENV, plan

LIVE = jnp.bool_(True)

readmit = jax.jit(admission.readmit)
joining_share = jax.jit(admission.joining_share)
reject = jax.jit(admission.reject)
fifo_cut = jax.jit(fifo_cut)
age_by_one_tick = jax.jit(age_by_one_tick)


def vector(rng: np.random.Generator, high: float) -> jax.Array:
    """One number a class; some classes have none."""
    drawn = rng.uniform(0.0, high, COUNT) * (rng.uniform(size=COUNT) < 0.7)
    return jnp.asarray(drawn, jnp.float32)


@given(st.integers(0, 10_000), st.booleans())
def test_a_full_queue_turns_away_the_overflow(seed: int, split: bool) -> None:
    """Exactly what is too many goes, of this tick's arrivals only, from all classes alike."""
    rng = np.random.default_rng(seed)
    capacity = rng.uniform(0.0, 60.0)
    deployment = dataclasses.replace(ENV.deployment, queue_capacity=jnp.float32(capacity))
    waiting, arrivals, preempted = (vector(rng, high) for high in (30.0, 20.0, 10.0))
    turned_away = np.asarray(reject(LIVE, plan(split), deployment, waiting, arrivals, preempted))
    newest = np.minimum(waiting, arrivals)
    assert (turned_away >= 0.0).all() and (turned_away <= newest * (1.0 + 1e-6)).all()
    # A split's preempted requests have been prefilled: they wait elsewhere.
    queued = float(waiting.sum()) + (0.0 if split else float(preempted.sum()))
    expected = min(max(queued - capacity, 0.0), float(newest.sum()))
    assert turned_away.sum() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(turned_away * newest.sum(), newest * expected, rtol=1e-3, atol=1e-3)


def queues(preempted: jax.Array, context: jax.Array) -> Queues:
    """Only those that were preempted; what runs already shows in the room that is left."""
    nobody = jnp.zeros(COUNT)
    return Queues(
        running=nobody,
        context=nobody,
        preempted=preempted,
        preempted_context=context,
        recompute_context=context,
    )


def timing(prefill_room_s: float) -> Timing:
    one = jnp.float32(1.0)
    return Timing(
        batch=one,
        step_s=one,
        beside_batch=one,
        chunk_room=one,
        full_chunk_s=one,
        packed=one,
        prefill_room_s=jnp.float32(prefill_room_s),
    )


def room(slots: float, kv: float) -> Room:
    zero = jnp.float32(0.0)
    return Room(
        slots=jnp.float32(slots),
        kv=jnp.float32(kv),
        kv_starved=zero,
        blocked=Wait(zero, zero, zero),
        full=zero,
    )


class Entered(NamedTuple):
    """A tick's admission: who had been preempted, who waited, and who of them gets in."""

    before: Queues
    entry: Admission
    waiting: np.ndarray
    served: np.ndarray


def entered(seed: int, resources: WindowPlan, slots: float, kv: float, prefill_s: float) -> Entered:
    """Random requests, and so much free for them."""
    rng = np.random.default_rng(seed)
    preempted = vector(rng, 8.0)
    before = queues(preempted, preempted * jnp.asarray(rng.uniform(50, 5000, COUNT), jnp.float32))
    own_s = jnp.asarray(rng.uniform(0.001, 0.5, COUNT), jnp.float32)
    waiting = jnp.zeros((COUNT, len(AGE_KNOTS)))
    for tick in range(12):
        waiting = age_by_one_tick(waiting, vector(rng, 3.0), jnp.int32(tick))
    free = (timing(prefill_s), own_s, room(slots, kv), waiting[:, 0])
    entry = readmit(LIVE, resources, CLASSES, before, *free)
    served = entry.tick_share * fifo_cut(LIVE, waiting, CLASSES.priority, entry.usage)
    return Entered(before, entry, np.asarray(waiting[:, 0]), np.asarray(served))


def blocks(requests: jax.Array, tokens: jax.Array) -> float:
    """KV tokens that requests of so many tokens in all hold."""
    return float(jnp.sum(tokens + BLOCK_SLACK_TOKENS * requests))


free_resources = st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 60_000.0), st.floats(0.0, 10.0))


@given(st.integers(0, 10_000), free_resources)
def test_nothing_is_given_out_twice(seed: int, free: tuple[float, float, float]) -> None:
    """Slots, KV and prefill seconds of those that come back and those that enter fit together."""
    slots, kv, prefill_s = free
    before, entry, _, served = entered(seed, plan(), *free)
    returning = np.asarray(entry.returning)
    assert (returning >= 0.0).all() and (returning <= before.preempted + 1e-5).all()
    used_kv = blocks(entry.returning, entry.returning_context)
    used_kv += blocks(served, served * CLASSES.prompt_tokens)
    used_s = float(entry.recompute_s) + float((served * entry.own_s).sum())
    assert returning.sum() + served.sum() <= slots * (1.0 + 1e-4) + 1e-4
    assert used_kv <= kv * (1.0 + 1e-4) + 0.1
    assert used_s <= prefill_s * (1.0 + 1e-4) + 1e-4
    if returning.sum() < before.preempted.sum() - 0.01:  # they go first
        assert served.sum() <= 0.01


@given(st.integers(0, 10_000), free_resources)
def test_a_split_gives_out_both_pools_once(seed: int, free: tuple[float, float, float]) -> None:
    """Prompts share the prefill GPUs' KV with those that wait there for a decoding GPU."""
    slots, kv, prefill_s = free
    split = plan(split=True, kv_budget_fraction=0.1)
    before, entry, _, served = entered(seed, split, *free)
    prompts = blocks(served, served * CLASSES.prompt_tokens)
    left = before.preempted - entry.returning
    held = blocks(left, before.preempted_context - entry.returning_context)
    assert held + prompts <= max(held, float(split.prefill_kv_tokens)) * (1.0 + 1e-4)
    assert float((served * entry.own_s).sum()) <= prefill_s * (1.0 + 1e-4) + 1e-4
    share = float(joining_share(LIVE, split, CLASSES, entry, jnp.asarray(served)))
    assert -1e-4 <= share <= 1.0  # what is left of a used-up resource is zero up to rounding
    joined_kv = blocks(entry.returning, entry.returning_context) + share * prompts
    assert float(entry.returning.sum()) + share * served.sum() <= slots * (1.0 + 1e-4) + 1e-3
    assert joined_kv <= kv * (1.0 + 1e-4) + 1.0


@given(st.integers(0, 10_000), free_resources)
def test_who_shares_the_gpu_decodes_at_once(seed: int, free: tuple[float, float, float]) -> None:
    """Colocated, nobody who was prefilled waits for a decoding GPU."""
    _, entry, _, served = entered(seed, plan(), *free)
    assert float(joining_share(LIVE, plan(), CLASSES, entry, jnp.asarray(served))) == 1.0


@given(st.integers(0, 10_000), st.booleans())
def test_enough_of_everything_admits_everybody(seed: int, split: bool) -> None:
    """Nobody waits but for the one GPU that prefills a long prompt, and nobody stays preempted,
    while nothing is scarce."""
    before, entry, waiting, served = entered(seed, plan(split), 1e4, 1e7, 1e3)
    of_one_gpu = np.minimum(plan().tick_s / entry.own_s * np.maximum(waiting, 1.0), waiting)
    np.testing.assert_allclose(served, of_one_gpu, rtol=1e-5)
    np.testing.assert_allclose(entry.returning, before.preempted, rtol=1e-6)
    np.testing.assert_allclose(entry.returning_context, before.preempted_context, rtol=1e-6)
    share = joining_share(LIVE, plan(split), CLASSES, entry, jnp.asarray(served))
    assert float(share) == 1.0


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_long_prompt_holds_up_one_gpu(gpus: int) -> None:
    """Requests behind it are prefilled by the others; it takes the seconds of one GPU either way,
    also when little of it is left."""
    resources, nobody = plan(), jnp.zeros(COUNT)
    tick_s = float(resources.tick_s)
    own_s = jnp.full(COUNT, 0.01).at[0].set(8.0 * tick_s)
    for left in (1.0, 0.2):
        older = nobody.at[0].set(left)
        waiting = age_by_one_tick(jnp.zeros((COUNT, len(AGE_KNOTS))), older, jnp.int32(0))
        waiting = age_by_one_tick(waiting, nobody.at[1].set(3.0), jnp.int32(1))
        free = (timing(gpus * tick_s), own_s, room(100.0, 1e7), waiting[:, 0])
        entry = readmit(LIVE, resources, CLASSES, queues(nobody, nobody), *free)
        group = jnp.zeros_like(CLASSES.priority)
        served = entry.tick_share * fifo_cut(LIVE, waiting, group, entry.usage)
        assert float(served[0]) == pytest.approx(0.125, rel=1e-4)
        assert float(served[1]) == pytest.approx(3.0 if gpus == 2 else 0.0, abs=1e-3)


@pytest.mark.parametrize("scarce", ["slots", "kv"])
def test_the_head_of_the_line_is_not_overtaken_where_room_is_short(scarce: str) -> None:
    """A long prompt that waits for a slot or for KV holds up what is behind it."""
    nobody = jnp.zeros(COUNT)
    own_s = jnp.full(COUNT, 0.01).at[0].set(1.0)
    waiting = age_by_one_tick(jnp.zeros((COUNT, len(AGE_KNOTS))), nobody.at[0].set(4.0), 0)
    waiting = age_by_one_tick(waiting, nobody.at[1].set(4.0), 1)
    tokens = 2.0 * (float(CLASSES.prompt_tokens[0]) + BLOCK_SLACK_TOKENS)
    found = room(2.0, 1e7) if scarce == "slots" else room(100.0, tokens)
    free = (timing(10.0), own_s, found, waiting[:, 0])
    entry = readmit(LIVE, plan(), CLASSES, queues(nobody, nobody), *free)
    served = fifo_cut(LIVE, waiting, jnp.zeros_like(CLASSES.priority), entry.usage)
    np.testing.assert_allclose((entry.tick_share * served)[:2], [2.0, 0.0], atol=1e-3)
