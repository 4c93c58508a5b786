"""Knobs resolved: what drafts yield per step, and which programs tell prompts of a class apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.env import ServeEnv
from jaxserve.sim.fast.plan import accepted_moments, plan_window
from jaxserve.sim.fast.state import init_sim
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS, SequenceKv
from jaxserve.sim.traffic.workload import Arrivals


@pytest.mark.parametrize("depth", [0, 1, 3, 8])
def test_moments_of_accepted_tokens(depth: int) -> None:
    """Mean and mean square of a step's tokens are those of drafts accepted one after the other."""
    chance = 0.7
    survives = chance ** np.arange(1, 9)
    table = jnp.asarray(1.0 + np.concatenate([[0.0], np.cumsum(survives)]), jnp.float32)
    accepted = np.cumprod(np.random.default_rng(0).random((400_000, 8)) < chance, axis=1)
    tokens = 1 + accepted[:, :depth].sum(axis=1)
    mean, square = accepted_moments(table[None], jnp.int32(depth))
    assert float(mean[0]) == pytest.approx(tokens.mean(), rel=0.01)
    assert float(square[0]) == pytest.approx((tokens**2.0).mean(), rel=0.01)


@pytest.mark.parametrize("depth", [0, 1, 4, 8])
def test_no_more_drafts_are_accepted_than_there_are(depth: int) -> None:
    """However much better than the profile traffic is said to be: then all are, every time."""
    env = jaxserve.make("static_workload")
    count, one = len(env.workload.classes.prompt_tokens), jnp.float32(1.0)
    best = Arrivals(jnp.ones((env.ticks, count)), one, jnp.int32(0), jnp.float32(3.0))
    action = jaxserve.make_action(speculation_depth=depth)
    classes, table = env.workload.classes, env.table
    plan = jax.jit(plan_window, static_argnums=6)(
        init_sim(count, one), action, best, env.deployment, classes, table, env.window_s
    )
    assert (np.asarray(plan.tokens_per_step) <= depth + 1).all()
    assert (np.asarray(plan.acceptance_spread) >= 0).all()
    metrics = jax.jit(ServeEnv.simulate)(env, init_sim(count, one), action, best)[1]
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(metrics))


@pytest.mark.parametrize("output_ages", [1, 8])
def test_prompts_of_a_class_differ_where_outputs_have_memory(output_ages: int) -> None:
    """The program of the built-in tasks, which have no memory, knows nothing of it."""
    env = jaxserve.make("static_workload", overrides={"output_ages": output_ages})
    classes = env.workload.classes
    count = len(classes.prompt_tokens)
    zero, one = jnp.float32(0.0), jnp.float32(1.0)
    traffic = Arrivals(jnp.zeros((env.ticks, count)), zero, jnp.int32(0), one)
    plan = jax.jit(plan_window, static_argnums=6)(
        init_sim(count, one),
        jaxserve.make_action(),
        traffic,
        env.deployment,
        classes,
        env.table,
        env.window_s,
    )
    assert (plan.work.seconds is not None) == (output_ages > 1)


def test_sequences_hold_what_windows_and_states_keep() -> None:
    """Beside their tokens, at the mean length of their class; nothing for layers of one kind."""
    env = jaxserve.make("static_workload")
    classes, count = env.workload.classes, len(env.workload.classes.prompt_tokens)
    sequence = SequenceKv(*map(jnp.float32, (1024.0, 5.0, 100.0)))
    several = dataclasses.replace(env.deployment, sequence_kv=sequence)
    zero, one = jnp.float32(0.0), jnp.float32(1.0)
    traffic = Arrivals(jnp.zeros((env.ticks, count)), zero, jnp.int32(0), one)
    state, action = init_sim(count, one), jaxserve.make_action()
    for deployment in (env.deployment, several):
        plan = jax.jit(plan_window, static_argnums=6)(
            state, action, traffic, deployment, classes, env.table, env.window_s
        )
        beside = plan.work.slack_tokens - BLOCK_SLACK_TOKENS
        context = np.asarray(classes.prompt_tokens + classes.output_growth * classes.output_tokens)
        expected = 5.0 * np.minimum(context, 1024.0) + 100.0
        wanted = np.zeros(count) if deployment is env.deployment else expected
        assert np.broadcast_to(beside, count) == pytest.approx(wanted, rel=1e-5)
