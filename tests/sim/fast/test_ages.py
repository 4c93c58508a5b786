"""Running sequences by age: nobody is lost, and they end when their class's lengths say."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.fast.ages import (
    advance,
    age_sum,
    begin,
    come_back,
    idle_ages,
    join,
    prefill,
    still_random,
    take_newest,
)
from jaxserve.sim.traffic import lengths
from jaxserve.sim.traffic.output_ages import output_ages

RNG = np.random.default_rng(0)
MIXED = np.where(RNG.random(20_000) < 0.9, 100, 1500) * RNG.standard_exponential(20_000)
OUTPUTS = {
    "fixed": lengths.uniform(400, 400),
    "narrow": lengths.lognormal(6.46, 0.15, 400, 1100),
    "exponential": lengths.from_samples(1 + 300 * RNG.standard_exponential(20_000)),
    "heavy": lengths.from_samples(1 + MIXED),
    "one token": lengths.uniform(1, 1),
}
TABLES = np.stack([output.table() for output in OUTPUTS.values()])
LIVES: Any = output_ages(TABLES, 32)
TICKS = 400


@jax.jit
def step(ages, count, progress):
    """A tick: the running decode, new ones join; the ages, and what they did together."""
    ages, before = advance(LIVES, ages, progress)
    ages, new = join(LIVES, ages, count, progress)
    return ages, jax.tree.map(jnp.add, before, new)


@jax.jit
def steadily(progress):
    """Running, completed and work of each of ``TICKS`` ticks in which one life a life begins."""

    def tick(ages, _):
        ages, done = step(ages, progress, progress)
        return ages, (ages.running.sum(1), done.completed, done.alive * progress)

    return jax.lax.scan(tick, idle_ages(LIVES), None, length=TICKS)[1]


def longer(ages: np.ndarray, outputs: int) -> np.ndarray:
    """Share of a class's outputs that are longer than each age, in mean outputs."""
    lives = np.maximum(TABLES[outputs].astype(float) - 1.0, 0.0)
    lives /= np.mean((lives[1:] + lives[:-1]) / 2)
    rising = lives + 1e-9 * np.arange(len(lives))
    return 1.0 - np.interp(ages, rising, np.linspace(0, 1, len(lives)), left=0.0, right=1.0)


@pytest.mark.parametrize("ticks_per_life", [31.0, 6.3, 0.7])
def test_the_number_running_follows_the_lengths(ticks_per_life: float) -> None:
    """From idle it grows as sequences that live as long as the class says make it grow, and by
    Little's law to one mean life of arrivals, whatever the ticks."""
    progress = jnp.full(len(OUTPUTS), 1.0 / ticks_per_life)
    running, completed, worked = (np.asarray(x, float) for x in steadily(progress))
    ends = np.arange(1, TICKS + 1) / ticks_per_life
    fine = np.linspace(0, ends[-1], 400_001)
    for index, name in enumerate(list(OUTPUTS)[:4]):
        share = longer(fine, index)
        grown = np.cumsum(np.append(0.0, (share[1:] + share[:-1]) / 2)) * (fine[1] - fine[0])
        expected = np.interp(ends, fine, grown)
        worst = np.abs(running[:, index] - expected).max()
        assert worst < (0.12 if name == "heavy" else 0.02), name
    # The longest of the heavy-tailed outputs are 20 lives, more than the short ticks span.
    settled = [0, 1, 2, 4] if ticks_per_life > 10 else slice(None)
    later = slice(TICKS // 2, None)
    if ticks_per_life > 1:
        np.testing.assert_allclose(worked[later].mean(0)[settled] * ticks_per_life, 1.0, atol=0.02)
        np.testing.assert_allclose(running[later].mean(0)[settled], 1.0, atol=0.015)
    np.testing.assert_allclose(completed[later].mean(0)[settled] * ticks_per_life, 1.0, atol=0.02)


def test_equal_outputs_end_together() -> None:
    """A cohort of equal outputs stays whole until its length, and is gone soon after."""
    ages = idle_ages(LIVES)
    assert ages is not None
    ages = dataclasses.replace(ages, running=begin(jnp.ones(len(OUTPUTS)), ages.phase, 32))
    left = []
    for _ in range(30):
        ages, _ = step(ages, jnp.zeros(len(OUTPUTS)), jnp.full(len(OUTPUTS), 0.05))
        left.append(np.asarray(ages.running.sum(1)))
    fixed, narrow, exponential = np.array(left)[:, :3].T
    assert fixed[17] > 0.99  # at 0.9 of a life
    assert fixed[21] < 0.01
    assert 0.2 < narrow[19] < 0.7
    np.testing.assert_allclose(exponential, np.exp(-0.05 * np.arange(1, 31)), atol=0.03)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 60)), min_size=1, max_size=12))
def test_nobody_is_lost(ticks: list[tuple[float, float]]) -> None:
    """Who joined has completed or still runs, at any pace; no count is negative."""
    ages: Any = idle_ages(LIVES)
    joined, completed = 0.0, np.zeros(len(OUTPUTS))
    for count, progress in ticks:
        ages, done = step(ages, jnp.full(len(OUTPUTS), count), jnp.full(len(OUTPUTS), progress))
        joined += count
        completed += np.asarray(done.completed)
        assert (np.asarray(ages.running) >= 0.0).all()
        assert (np.asarray(done.alive) >= 0.0).all()
        assert (ages.phase >= 0.0).all()
        assert (ages.phase < 1.0).all()
    np.testing.assert_allclose(completed + ages.running.sum(1), joined, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("prefill_s", [0.004, 0.1, 1.5])
def test_as_many_are_in_prefill_as_littles_law_says(prefill_s: float) -> None:
    """At a steady rate; they end when nobody comes, and none takes no slot."""
    tick_s, rate = 0.1, 7.0
    ages = idle_ages(LIVES)
    assert ages is not None
    admitted = jnp.full(len(OUTPUTS), rate * tick_s)
    for _ in range(200):
        ages = prefill(ages, admitted, jnp.float32(prefill_s), jnp.float32(tick_s))
    np.testing.assert_allclose(ages.in_prefill, rate * prefill_s, rtol=1e-4)
    for _ in range(400):
        ages = prefill(ages, 0.0 * admitted, jnp.float32(prefill_s), jnp.float32(tick_s))
    assert np.all(np.asarray(ages.in_prefill) < 1e-3)


def test_the_newest_go_first_and_come_back_at_their_age() -> None:
    """What is taken is what was asked for, from the youngest bins; it returns to the same ones."""
    held = jnp.asarray(RNG.random((2, 32)), jnp.float32)
    wanted = jnp.asarray([3.0, 100.0])
    share = take_newest(held, wanted)
    np.testing.assert_allclose((share * held).sum(1), [3.0, float(held[1].sum())], rtol=1e-5)
    first = np.asarray(share[0])
    assert (np.diff(first) <= 0).all()
    assert (((first > 0) & (first < 1)).sum()) <= 1
    ages = idle_ages(LIVES)
    assert ages is not None
    preempted = jnp.asarray(RNG.random(ages.running.shape), jnp.float32)
    back = come_back(dataclasses.replace(ages, preempted=preempted), jnp.full(5, 0.25))
    np.testing.assert_allclose(back.running, 0.25 * preempted, rtol=1e-6)
    np.testing.assert_allclose(back.preempted, 0.75 * preempted, rtol=1e-6)


def test_chance_and_progress_of_those_that_run() -> None:
    """In steady state half of exponential outputs is left to chance and nothing of equal ones,
    which are half-way through on average."""
    ages = idle_ages(LIVES)
    progress = jnp.full(len(OUTPUTS), 0.11)
    for _ in range(120):
        ages, _ = step(ages, progress, progress)
    assert ages is not None
    running = np.asarray(ages.running.sum(1))
    variance = np.asarray(still_random(LIVES, ages).sum(1)) / running
    mean_age = np.asarray(age_sum(LIVES, ages)) / running
    np.testing.assert_allclose(variance[[0, 2]], [0.0, 0.5], atol=0.03)
    np.testing.assert_allclose(mean_age[[0, 2]], [0.5, 1.0], atol=0.05)
