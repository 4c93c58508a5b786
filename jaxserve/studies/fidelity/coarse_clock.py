"""Traces whose clock is coarse: latencies with times of whole seconds against the recorded times.

Azure's conversation and code traces have clocks of microseconds. Their times are cut to the begin
of a tick, spread as ``load_trace`` spreads them, and played by the reference simulator beside the
recorded ones.

    python -m jaxserve.studies.fidelity.coarse_clock
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.runtime.process_pool import map_in_processes
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import serve
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.traffic.traces import Trace, load_trace, spread_in_ticks
from jaxserve.studies.fidelity.measurements import FidelityRow, shared_data

FILES = {
    "conversation": "traces/AzureLLMInferenceTrace_conv.csv",
    "code": "traces/AzureLLMInferenceTrace_code.csv",
}
TICKS_S = (1.0, 3.0)
"""Ticks of BurstGPT's clock and of Mooncake's."""
LOADS = (1.0, 3.0)
"""Factors on the recorded rates."""
BAR = 10.0
_QUANTILES = (0.5, 0.99)


def even_in_ticks(time_s: NDArray[np.float64], tick_s: float) -> NDArray[np.float64]:
    """Equal times at equal distances in the tick that they begin, for comparison."""
    _, first, count = np.unique(time_s, return_index=True, return_counts=True)
    place = np.arange(len(time_s)) - np.repeat(first, count)
    return time_s + place * np.repeat(tick_s / count, count) - time_s[0]


def waits_s(trace: Trace) -> NDArray[np.float64]:
    """Median and 99th percentile of the time to first token at the engine, s: Llama-3.1-8B on one
    H100."""
    gpu, model = serve("h100-sxm-80gb", "llama-3.1-8b", None)
    log = run_requests(
        trace_requests(trace),
        CostModel.of(gpu, model, 1),
        GpuKnobs(batch_cap=256, kv_capacity_tokens=400_000),
        SchedulerSettings(token_budget=2048),
    )
    return np.nanquantile(log["first_token_s"] - log["arrival_s"], _QUANTILES)


def clock_fidelity(shared: Path) -> list[FidelityRow]:
    """A row for each trace, tick and quantile: the mean error over ``LOADS``; none without the
    traces.

    Args:
      shared: directory of measurements, see ``measurements.shared_data``.
    """
    cases, traces = [], []
    for name, file in FILES.items():
        if not (shared / file).is_file():
            continue
        recorded = load_trace(shared / file)
        for load in LOADS:
            arrival_s = recorded.arrival_s / load
            traces.append(dataclasses.replace(recorded, arrival_s=arrival_s))
            for tick_s in TICKS_S:
                cases.append((name, tick_s))
                begin_s = np.floor(arrival_s / tick_s) * tick_s
                for spread in (spread_in_ticks, even_in_ticks):
                    times_s = spread(begin_s, tick_s)
                    traces.append(dataclasses.replace(recorded, arrival_s=times_s))
    played = np.array(map_in_processes(waits_s, [(trace,) for trace in traces]))
    if not len(played):
        return []
    # Of each load: the recorded times, then both ways of spreading for each tick.
    played = played.reshape(-1, 1 + 2 * len(TICKS_S), len(_QUANTILES))
    errors = 100.0 * (played[:, 1:] / played[:, :1] - 1.0)
    errors = errors.reshape(len(cases), 2, len(_QUANTILES))
    rows = []
    for name, tick_s in dict.fromkeys(cases):
        of = errors[[case == (name, tick_s) for case in cases]]
        for place, quantile in enumerate(_QUANTILES):
            random, even = of[:, 0, place], of[:, 1, place]
            rows.append(
                FidelityRow.within(
                    f"coarse clock: {name} trace, tick of {tick_s:g} s, TTFT p{100 * quantile:g}",
                    float(np.abs(random).mean()),
                    BAR,
                    "% (mean)",
                    f"recorded rate and {LOADS[-1]:g} times that, {_listed(random)}; requests of "
                    f"a tick at equal distances, {_listed(even)}",
                )
            )
    return rows


def _listed(errors: NDArray[np.float64]) -> str:
    return " and ".join(f"{error:+.1f} %" for error in errors)


if __name__ == "__main__":
    data = shared_data()
    if data is None:
        raise SystemExit("there are no traces to compare with")
    print(*clock_fidelity(data), sep="\n")
