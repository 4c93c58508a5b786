"""Replay of a recorded trace: your requests' own arrival times and lengths, at several batch caps.

Prints the trace's load, and the share of requests that met their SLOs at each batch cap. Without a
file it writes a small synthetic one in the Azure format first.

    python examples/replay_trace.py --trace my_trace.csv
"""

from __future__ import annotations

import argparse
import csv
import datetime
from pathlib import Path

import numpy as np

import jaxserve
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.rollout import rollout
from jaxserve.evaluation.episode_statistics import episode_statistics, intervals
from jaxserve.seeds import episode_keys
from jaxserve.sim.traffic.traces import load_trace

CAPS = (4, 16, 64)


def main() -> None:
    """Replays the trace with each batch cap."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="Azure, Mooncake or BurstGPT format")
    parser.add_argument("--windows", type=int, default=60, help="1 s each, default %(default)s")
    parser.add_argument("--episodes", type=int, default=4, help="default %(default)s")
    arguments = parser.parse_args()

    path = arguments.trace or write_synthetic(Path("synthetic_trace.csv"))
    trace = load_trace(path)
    env = jaxserve.make("trace_replay", trace=trace, overrides={"horizon": arguments.windows})
    print(
        f"{path}: {len(trace)} requests in {trace.duration_s:.0f} s, mean prompt "
        f"{trace.prompt_tokens.mean():.0f} and output {trace.output_tokens.mean():.0f} tokens"
    )
    keys = episode_keys(arguments.episodes)
    for cap in CAPS:
        policy = StaticPolicy(jaxserve.make_action(batch_cap=cap))
        found = intervals(episode_statistics(env, rollout(env, policy, keys)))
        print(
            f"batch cap {cap:3}: SLO met {found['slo_attainment'].mean:6.1%}, "
            f"TTFT p99 {found['ttft_p99_s'].mean:7.3f} s"
        )


def write_synthetic(path: Path, seconds: float = 90.0) -> Path:
    """Five requests a second with log-normal lengths."""
    dice = np.random.default_rng(0)
    arrivals = np.cumsum(dice.exponential(0.2, int(5 * seconds)))
    prompts = dice.lognormal(6.5, 0.8, len(arrivals)).clip(8, 6000).astype(int)
    outputs = dice.lognormal(5.0, 0.7, len(arrivals)).clip(4, 1500).astype(int)
    begin = datetime.datetime(2025, 1, 1)
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["TIMESTAMP", "ContextTokens", "GeneratedTokens"])
        for arrival, prompt, output in zip(arrivals, prompts, outputs, strict=True):
            rows.writerow([begin + datetime.timedelta(seconds=arrival), prompt, output])
    return path


if __name__ == "__main__":
    main()
