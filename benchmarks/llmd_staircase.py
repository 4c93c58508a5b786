"""llm-d's scored benchmark of its SLO-aware law: `python -m benchmarks.llmd_staircase`.

Benchmark and result are llm-d/llm-d's, guides/workload-autoscaling/slo-aware
(benchmark-templates/BENCHMARK.md and scored-config.yml): Qwen3-32B with TP2 on H100s, a staircase
of rates, 3 to 8 replicas that are warm after about 100 s, TTFT 3 s and TPOT 100 ms. The law scored
95.8 % at 5.93 replicas on average, the static fleet of 8 100 %. Nothing of the law or of the
replica is fitted to that result.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from jaxserve.autoscale.confirm import Confirmed, play_reference
from jaxserve.autoscale.setup import WINDOW_S, FleetDemand, load_demand
from jaxserve.scaling.setting import STATIC, RuleSetting
from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import read_table_file, write_table_file

STAGES = ((2, 330), (4, 360), (6, 360), (8, 360), (10, 360), (4, 360), (1, 300))
"""Requests a second and seconds of each stage."""
TAIL_S = 1200.0
"""Time after the load in which the pool drains to its floor, s."""
PUBLISHED = {"static 8": (100.0, 8.0), "slo_law": (95.8, 5.93)}
LEAST, MOST, WARM_UP_S = 3, 8, 100.0


def write_trace(path: Path, seed: int) -> None:
    """Requests of the staircase: constant rates, normal lengths (inference-perf's)."""
    rng = np.random.default_rng(seed)
    rows, start_s = [], 0.0
    for rate, seconds in STAGES:
        for arrival in start_s + np.arange(rate * seconds) / rate:
            prompt = float(np.clip(rng.normal(4000, 300), 3500, 4500))
            output = float(np.clip(rng.normal(1000, 80), 900, 1100))
            rows.append((_time(arrival), round(prompt), round(output)))
        start_s += seconds
    # A last request at the end of the tail, so that the recording lasts as long.
    rows.append((_time(start_s + TAIL_S), 4000, 900))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        writer.writerows(rows)


def _time(seconds: float) -> str:
    return (datetime(2026, 1, 1) + timedelta(seconds=seconds)).isoformat(" ", "microseconds")


def demand_of(folder: Path, seed: int) -> FleetDemand:
    """The benchmark's fleet and traffic; table and trace are written to ``folder``."""
    table, trace = folder / "qwen3-32b.parquet", folder / "staircase.csv"
    if not table.exists():
        write_table_file(table, build("h100-sxm-80gb", "qwen3-32b", tensor_parallel=2))
    write_trace(trace, seed)
    return replace(
        load_demand(
            MOST,
            FleetSettings((WARM_UP_S, WARM_UP_S)),
            batch_cap=256,
            attainment=0.95,
            min_replicas=LEAST,
            seed=seed,
            table=str(table),
            trace=str(trace),
            ttft_s=3.0,
            tpot_s=0.1,
        ),
        initial=LEAST,
    )


def score(played: Confirmed) -> tuple[float, float]:
    """Attainment in per cent, and mean replicas until the pool is at its floor after the load."""
    load = round(sum(seconds for _, seconds in STAGES) / WINDOW_S)
    at_floor = np.flatnonzero(played.rented_s[load:] <= LEAST * WINDOW_S + 1e-6)
    end = load + (int(at_floor[0]) if len(at_floor) else len(played.rented_s) - load)
    return 100.0 * played.attainment, float(played.rented_s[:end].mean() / WINDOW_S)


def main() -> None:
    """Plays the law and the static fleet in the reference simulator and prints both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    rows = {"static 8": [], "slo_law": []}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(arguments.seeds):
            demand = demand_of(Path(name), seed)
            timer = read_table_file(Path(name) / "qwen3-32b.parquet").metadata.cost_model
            whole = slice(0, demand.windows)
            lanes = {
                "static 8": RuleSetting(STATIC, (8.0,)),
                "slo_law": RuleSetting.default("slo_law"),
            }
            for label, lane in lanes.items():
                found = score(play_reference(demand, lane, timer, whole))
                rows[label].append(found)
                print(f"seed {seed}, {label}: {found[0]:.2f} %, {found[1]:.2f} replicas")
    lines = [
        "| fleet | published met % | here | published replicas | here |",
        "| --- | --: | --: | --: | --: |",
    ]
    for label, found in rows.items():
        inside, replicas = np.mean(found, axis=0)
        met, mean = PUBLISHED[label]
        lines.append(f"| {label} | {met:.1f} | {inside:.1f} | {mean:.2f} | {replicas:.2f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.markdown is not None:
        arguments.markdown.write_text(_HEAD + text)


_HEAD = """\
# llm-d's staircase

Written by `python -m benchmarks.llmd_staircase --markdown docs/llmd_staircase.md`; nothing here is
typed in but what llm-d published. Qwen3-32B with TP2 on H100s, 4,000 prompt and 1,000 output
tokens, 2-4-6-8-10-4-1 requests/s, TTFT 3 s, TPOT 100 ms, 3 to 8 replicas, warm after 100 s, in the
reference simulator with the data sheet's table. Means over seeds of the traffic.

"""

if __name__ == "__main__":
    main()
