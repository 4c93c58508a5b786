"""Promises of a tick's iteration times."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxserve.sim.fast.timing import alive_share


def test_alive_share_is_the_mean_of_an_exponential_life() -> None:
    """(1 - exp(-p)) / p to 1e-5, from the series over the seam at 0.05 to long windows."""
    progress = np.float32([*np.geomspace(1e-6, 20.0, 10_000), 0.05, np.nextafter(0.05, 0.0)])
    exact = -np.expm1(-np.float64(progress)) / progress
    np.testing.assert_allclose(alive_share(jnp.asarray(progress)), exact, rtol=1e-5)
    assert float(alive_share(jnp.float32(0.0))) == 1.0
