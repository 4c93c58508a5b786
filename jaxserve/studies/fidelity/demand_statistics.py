"""Demand drawn from fitted parameters against ServeGen's other days.

Parameters are fitted to every second day of a workload and drawn for as many days as it takes to
have no sampling error of their own; the statistics of their rates in slots of ten minutes are
compared with those of the days that were left out.

    python -m jaxserve.studies.fidelity.demand_statistics
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve.seeds import episode_keys
from jaxserve.sim.traffic.demand import Demand, advance_demand, init_demand
from jaxserve.studies.fidelity.demand_fit import (
    DAY_SLOTS,
    SLOT_S,
    STREAMS,
    WORKLOADS,
    fit_demand,
    read_clients,
)
from jaxserve.studies.fidelity.measurements import FidelityRow, shared_data

BAR = 25.0
"""Largest error of a statistic, per cent; stated before the first comparison."""
_DRAWN_DAYS = 256
_FITTED, _LEFT_OUT = slice(0, None, 2), slice(1, None, 2)


def demand_fidelity(directory: Path) -> list[FidelityRow]:
    """A row for every statistic: the mean over all streams of workloads with several days.

    Args:
      directory: directory of the measured data.
    """
    if not (directory / "servegen").is_dir():
        return []
    errors: dict[str, dict[str, float]] = {}
    for workload in WORKLOADS.values():
        clients = read_clients(directory / "servegen", workload)
        if clients.rate_rps.shape[1] == DAY_SLOTS:
            continue  # no day to leave out
        kept = clients.part(_FITTED)
        fitted = fit_demand(kept)["streams"]
        left_out = clients.part(_LEFT_OUT)
        for name, members in zip(STREAMS, kept.streams, strict=True):
            rates = left_out.rate_rps[members].sum(axis=0).reshape(-1, DAY_SLOTS)
            found, drawn = statistics(rates), statistics(drawn_levels(fitted[name]))
            for statistic, value in found.items():
                error = 100.0 * abs(drawn[statistic] / value - 1.0)
                errors.setdefault(statistic, {})[f"{workload} {name}"] = error
    rows = []
    for statistic, by_stream in errors.items():
        worst = max(by_stream, key=by_stream.__getitem__)
        detail = (
            f"fitted to every second day, compared with the others; mean of {len(by_stream)} "
            f"streams, the worst is {worst} with {by_stream[worst]:.0f} %"
        )
        mean = float(np.mean(list(by_stream.values())))
        rows.append(FidelityRow.within(f"demand of days: {statistic}", mean, BAR, "%", detail))
    return rows


def statistics(rates: NDArray[np.floating]) -> Mapping[str, float]:
    """Statistics of rates float[days, slots] within days.

    Returns:
      the standard deviation of log rates over a day and of their change in ten minutes and in an
      hour, and the 99th percentile of rates over their day's mean.
    """
    logs = np.log(np.maximum(rates, 1e-3))
    spread = logs - logs.mean(axis=1, keepdims=True)
    return {
        "deviation of log rates within a day": float(np.sqrt(np.mean(spread**2))),
        "change of log rates in ten minutes": float(np.std(np.diff(logs, axis=1))),
        "change of log rates in an hour": float(np.std(logs[:, 6:] - logs[:, :-6])),
        "p99 of rates over the day's mean": float(
            np.quantile(rates / rates.mean(axis=1, keepdims=True), 0.99)
        ),
    }


def drawn_levels(stream: Mapping[str, Any]) -> NDArray[np.float32]:
    """Levels float32[days, slots] that one stream's parameters draw."""
    cosine, sine, deviation, time_s = (
        jnp.array([stream[name]]) for name in ("cosine", "sine", "deviation", "time_s")
    )
    demand = Demand(
        cosine=cosine,
        sine=sine,
        deviation=deviation,
        time_s=time_s,
        log_mean=jnp.zeros(1),
        excess=jnp.zeros(1),
        stream=jnp.zeros(1, jnp.int32),
    )
    return np.asarray(_levels(demand, episode_keys(_DRAWN_DAYS, "train")))


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0))
def _levels(demand: Demand, key: jax.Array) -> jax.Array:
    def slot(state: Any, index: jax.Array) -> tuple[Any, jax.Array]:
        state, level, _ = advance_demand(demand, state, key, index, jnp.ones(1), SLOT_S)
        return state, level[0]

    return jax.lax.scan(slot, init_demand(demand, key), jnp.arange(DAY_SLOTS))[1]


if __name__ == "__main__":
    shared = shared_data()
    if shared is None:
        raise SystemExit("measured data is absent")
    for row in demand_fidelity(shared):
        print(row)
