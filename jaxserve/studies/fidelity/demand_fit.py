"""The demand of fleets fitted to the clients of ServeGen.

Clients are divided into streams by the length of their outputs. A stream's log rate in slots of ten
minutes is a profile of the day (harmonics), and what is left, whose autocovariance two exponentials
fit: two Ornstein-Uhlenbeck processes. Arrivals of renewal processes with rates r and coefficients
of variation c superpose to an index of dispersion of sum(r c^2) / sum(r) over times much longer
than the time between two arrivals (Cox, Renewal Theory, 1962).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.optimize import least_squares

SLOT_S, DAY_SLOTS = 600.0, 144
HARMONICS = 3
WORKLOADS = {"servegen_chat": "chat_large", "servegen_reasoning": "reasoning"}
"""Names of the fitted demands, and those of ServeGen's workloads."""
STREAMS = ("short", "long")
_QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_LAGS = 36
"""Slots over which autocovariances are fitted: six hours."""
_SOURCE = (
    "ServeGen (alibaba; copy azaj01/ServeGen @ bdf8614), production demand of Alibaba Cloud Model "
    "Studio, fitted by scripts/fit_demand.py"
)


@dataclass(frozen=True)
class Clients:
    """Clients of a workload, in S slots of ten minutes."""

    rate_rps: NDArray[np.float64]
    """float64[C, S], requests a second."""
    squared_cv: NDArray[np.float64]
    """float64[C, S], squared coefficient of variation of the times between requests; 0 without
    requests."""
    prompt: NDArray[np.float64]
    """float64[C, Q], mean quantiles of prompts, tokens; NaN for clients without lengths."""
    output: NDArray[np.float64]
    """float64[C, Q], the same of outputs."""

    def part(self, days: slice) -> Clients:
        """Some of the days."""
        slots = np.arange(self.rate_rps.shape[1]).reshape(-1, DAY_SLOTS)[days].ravel()
        return Clients(self.rate_rps[:, slots], self.squared_cv[:, slots], self.prompt, self.output)

    @property
    def streams(self) -> list[NDArray[np.bool_]]:
        """bool[C] for each of ``STREAMS``: clients with shorter outputs, and with longer ones, of
        about equal rates. Clients without lengths are the stream's that has less without them."""
        share = self.rate_rps.sum(axis=1)
        median = self.output[:, _QUANTILES.index(50)]
        known = np.flatnonzero(np.isfinite(median))
        order = known[np.argsort(median[known], kind="stable")]
        half = np.searchsorted(np.cumsum(share[order]), 0.5 * share[known].sum())
        short, long = (np.zeros(len(share), bool) for _ in STREAMS)
        short[order[: half + 1]] = True
        long[order[half + 1 :]] = True
        # The largest first, so that both streams end up alike.
        for client in sorted(np.flatnonzero(~np.isfinite(median)), key=lambda c: -share[c]):
            (short if share[short].sum() < share[long].sum() else long)[client] = True
        return [short, long]


def read_clients(directory: Path, workload: str) -> Clients:
    """Clients of one of ServeGen's workloads, over whole days."""
    only = [("workload", "=", workload)]
    rates = pq.read_table(directory / "servegen_rates.parquet", filters=only)
    client, start_s, rate, cv = (
        rates[name].to_numpy() for name in ("client", "start_s", "rate_rps", "cv")
    )
    slots = int(start_s.max() // SLOT_S + 1) // DAY_SLOTS * DAY_SLOTS
    names, place = np.unique(client, return_inverse=True)
    slot = (start_s // SLOT_S).astype(int)
    inside = slot < slots
    rate_rps = np.zeros((len(names), slots))
    squared = np.zeros_like(rate_rps)
    rate_rps[place[inside], slot[inside]] = rate[inside]
    squared[place[inside], slot[inside]] = np.nan_to_num(cv[inside]) ** 2
    lengths = pq.read_table(directory / "servegen_lengths.parquet", filters=only)
    of_client = lengths["client"].to_numpy()

    def quantiles(kind: str) -> NDArray[np.float64]:
        table = np.stack([lengths[f"{kind}_p{q}"].to_numpy() for q in _QUANTILES], axis=1)
        rows = [table[of_client == name] for name in names]
        missing = np.full(len(_QUANTILES), np.nan)
        return np.stack([each.mean(axis=0) if len(each) else missing for each in rows])

    return Clients(rate_rps, squared, quantiles("prompt"), quantiles("output"))


def fit_demand(clients: Clients) -> dict[str, Any]:
    """The parameters as ``data/demand`` has them, see ``jaxserve.sim.traffic.demand``."""
    streams = {
        name: _fit_stream(clients, members)
        for name, members in zip(STREAMS, clients.streams, strict=True)
    }
    return {"source": _SOURCE, "license": "Apache-2.0", "streams": streams}


def _fit_stream(clients: Clients, members: NDArray[np.bool_]) -> dict[str, Any]:
    rate = clients.rate_rps[members]
    total = np.maximum(rate.sum(axis=0), 1e-3)
    logs = np.log(total)
    slots = np.arange(len(logs))
    angle = 2.0 * np.pi * np.outer(slots / DAY_SLOTS, np.arange(1, HARMONICS + 1))
    columns = [np.ones(len(logs)), *np.cos(angle).T, *np.sin(angle).T]
    coefficients, *_ = np.linalg.lstsq(np.stack(columns, axis=1), logs, rcond=None)
    left = logs - np.stack(columns, axis=1) @ coefficients
    deviation, time_s = _noise(left)
    weight = rate.sum(axis=1)
    excess = np.median((rate * clients.squared_cv[members]).sum(axis=0) / total) - 1.0
    return {
        "rate_rps": _rounded(total.mean()),
        "cosine": [_rounded(x) for x in coefficients[1 : HARMONICS + 1]],
        "sine": [_rounded(x) for x in coefficients[HARMONICS + 1 :]],
        "deviation": [_rounded(x) for x in deviation],
        "time_s": [_rounded(x) for x in time_s],
        "excess_dispersion": _rounded(max(excess, 0.0)),
        "prompt": _mixture(clients.prompt[members], weight),
        "output": _mixture(clients.output[members], weight),
    }


def autocovariance(left: NDArray[np.float64], lags: int = _LAGS) -> NDArray[np.float64]:
    """float64[lags], autocovariance at 0, 1, ... slots."""
    return np.array([float(np.mean(left[: len(left) - k] * left[k:])) for k in range(lags)])


def _noise(left: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Deviations and correlation times, s, of the two processes that fit an autocovariance best."""
    found = autocovariance(left)
    lag_s = SLOT_S * np.arange(len(found))

    def errors(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        variance, time_s = np.exp(parameters[:2]), np.exp(parameters[2:])
        return np.sum(variance * np.exp(-lag_s[:, None] / time_s), axis=1) - found

    start = np.log([0.3 * found[0], 0.7 * found[0], 900.0, 7200.0])
    bounds = np.log([[1e-6, 1e-6, 300.0, 1800.0], [9.0, 9.0, 3600.0, 86_400.0]])
    solved = least_squares(errors, start, bounds=bounds).x
    return np.exp(0.5 * solved[:2]), np.exp(solved[2:])


def _mixture(quantiles: NDArray[np.float64], weight: NDArray[np.float64]) -> dict[str, float]:
    """Quantiles of the requests of clients with these quantiles and rates, by percentage."""
    known = np.isfinite(quantiles).all(axis=1)
    grid = np.geomspace(1.0, 200_000.0, 4000)
    probability = np.array(_QUANTILES) / 100.0
    below = sum(
        share
        * np.interp(np.log(grid), np.log(np.maximum(row, 1.0) * _RISING), probability, 0.0, 1.0)
        for row, share in zip(quantiles[known], weight[known] / weight[known].sum(), strict=True)
    )
    found = np.exp(np.interp([0.1, 0.25, 0.5, 0.75, 0.9, 0.99], below, np.log(grid)))
    return {f"{p:g}": _rounded(x) for p, x in zip((10, 25, 50, 75, 90, 99), found, strict=True)}


_RISING = 1.0 + 1e-9 * np.arange(len(_QUANTILES))
"""Factors that make equal quantiles rise, as interpolation needs."""


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
