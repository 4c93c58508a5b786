"""Demand of days: means, drifts and bursts against the parameters that they are drawn from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.datafiles import load_json
from jaxserve.sim.traffic.demand import Demand, advance_demand, init_demand
from jaxserve.tasks.spec import demand_names
from jaxserve.tasks.traffic import log_mean_factor

WINDOW_S, WINDOWS, EPISODES = 60.0, 1440, 64


def demand(**changes: float) -> Demand:
    """A stream of the chat demand, of which a part may be switched off."""
    row = load_json("demand/servegen_chat.json")["streams"]["long"] | changes
    return Demand(
        cosine=jnp.asarray([row["cosine"]]),
        sine=jnp.asarray([row["sine"]]),
        deviation=jnp.asarray([row["deviation"]]),
        time_s=jnp.asarray([row["time_s"]]),
        log_mean=jnp.asarray([log_mean_factor(row)]),
        excess=jnp.asarray([row["excess_dispersion"]]),
        stream=jnp.zeros(2, jnp.int32),
    )


def days(parameters: Demand, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """Levels and bursts of days, float32[EPISODES, WINDOWS]."""

    def day(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def window(state, number):
            arrivals = jnp.array([mean, 0.0])
            state, level, burst = advance_demand(parameters, state, key, number, arrivals, WINDOW_S)
            return state, (level[0], burst[0])

        return jax.lax.scan(window, init_demand(parameters, key), jnp.arange(WINDOWS))[1]

    keys = jax.random.split(jax.random.key(0), EPISODES)
    level, burst = jax.jit(jax.vmap(day))(keys)
    return np.asarray(level), np.asarray(burst)


def test_levels_have_mean_one_and_the_fitted_deviation() -> None:
    """Over many days; they drift as slowly as the correlation times say."""
    parameters = demand()
    level, _ = days(parameters, 100.0)
    logs = np.log(level)
    deviation = np.hypot(*np.asarray(parameters.deviation[0]))
    profile = logs.std() ** 2 - deviation**2
    assert level.mean() == pytest.approx(1.0, abs=0.15)
    assert abs(profile) < 0.15
    hour = [np.corrcoef(day[:-60], day[60:])[0, 1] for day in logs - logs.mean(axis=0)]
    assert 0.3 < np.mean(hour) < 0.95


def test_steady_streams_have_level_one() -> None:
    """Without profile, drift and excess nothing changes but what Poisson's law does."""
    none = {"cosine": [0.0] * 3, "sine": [0.0] * 3, "deviation": [0.0] * 2}
    level, burst = days(demand(**none, excess_dispersion=0.0), 100.0)
    np.testing.assert_allclose(level, 1.0, rtol=1e-5)
    np.testing.assert_allclose(burst, 1.0, rtol=1e-5)


def test_bursts_have_the_excess_dispersion() -> None:
    """The variance of a window's level is the excess over the expected arrivals."""
    parameters, mean = demand(deviation=[0.0, 0.0], cosine=[0.0] * 3, sine=[0.0] * 3), 50.0
    _, burst = days(parameters, mean)
    assert burst.mean() == pytest.approx(1.0, abs=0.01)
    assert mean * burst.var() == pytest.approx(float(parameters.excess[0]), rel=0.05)
    assert burst.min() >= 0.0


@pytest.mark.parametrize("name", demand_names())
def test_fitted_demands_say_where_they_are_from(name: str) -> None:
    """Source, licence and two streams each."""
    fitted = load_json(f"demand/{name}.json")
    assert "ServeGen" in fitted["source"] and fitted["license"] == "Apache-2.0"
    for row in fitted["streams"].values():
        assert row["rate_rps"] > 0.0 and len(row["deviation"]) == len(row["time_s"]) == 2
