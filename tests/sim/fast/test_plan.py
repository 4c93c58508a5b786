"""Knobs resolved: what drafts yield per step."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.sim.fast.plan import accepted_moments


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
