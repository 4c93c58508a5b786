"""How far a learner looks ahead."""

import dataclasses

import jax.numpy as jnp
import pytest

import jaxserve
from jaxserve.learning.discount import QUEUE_DISCOUNT, task_discount


def test_as_far_as_a_regime_lasts() -> None:
    """With knobs that restart engines: the mean stay in a regime, in windows."""
    env = jaxserve.make("adversarial_multitenant")
    assert task_discount(env) == pytest.approx(1.0 - 1.0 / 47.5)


def test_to_the_end_of_an_episode_without_other_regimes() -> None:
    """Where traffic stays the same, what a restart gains lasts to the end of the episode."""
    env = jaxserve.make("azure_conversation")
    assert task_discount(env) == pytest.approx(1.0 - 1.0 / 200.0)
    shorter = dataclasses.replace(env, horizon=jnp.int32(100))
    assert task_discount(shorter) == pytest.approx(1.0 - 1.0 / 100.0)


def test_short_without_knobs_that_restart() -> None:
    """Batch cap and KV budget act at once."""
    assert task_discount(jaxserve.make("static_workload")) == QUEUE_DISCOUNT
