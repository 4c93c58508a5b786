"""The fast simulator against the reference simulator: same table, same requests, same knobs.

Both simulators play the same episodes of each scenario (``jaxserve.studies.fidelity.scenarios``),
pooled over seeds; errors are those of the fast simulator.

    python -m jaxserve.studies.fidelity.fast_vs_reference
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.reference_rollout import ReferenceEpisode, reference_knobs, table_timer
from jaxserve.agents.rollout import windows_of
from jaxserve.env import ServeEnv
from jaxserve.runtime.process_pool import map_in_processes
from jaxserve.seeds import episode_key
from jaxserve.sim.fast.latency import ttft_quantile
from jaxserve.sim.reference.settings import Knobs
from jaxserve.sim.reference.simulator import ReferenceSimulator
from jaxserve.sim.traffic.workload import Workload
from jaxserve.spaces import make_action
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.scenarios import (
    Scenario,
    at_engine,
    environment,
    scenario_grid,
    workload_at,
)
from jaxserve.types import ServeAction, WindowMetrics

WINDOWS = 80
SEEDS = 2
BARS = {
    "throughput": (3.0, "%"),
    "TPOT": (6.0, "%"),
    "ITL p50": (6.0, "%"),
    "SLO attainment": (3.0, "points"),
    "TTFT p50": (15.0, "%"),
    "TTFT p99": (20.0, "%"),
    "TTFT p50, no front end": (15.0, "%"),
    "TTFT p99, no front end": (20.0, "%"),
}
"""Largest error that passes, and its unit. Both simulators know the front end's delay, which makes
the relative error of a short TTFT smaller; TTFT is therefore compared without the delay as well."""

_CAPACITY_WINDOWS = 60
_CAPACITY_WARM_UP = 25
_OVERLOAD_RPS_PER_GPU = 80.0


@dataclass(frozen=True)
class ScenarioOutcome:
    """Results of a simulator in a scenario; counts are summed over its episodes."""

    arrivals: float
    """requests that arrived."""
    completed: float
    """requests that ended."""
    good: float
    """requests that ended within their objectives."""
    tpot_s: float
    """mean time per output token after the first."""
    itl_p50_s: float
    """median inter-token latency of a window, averaged over output tokens."""
    ttft_p50_s: float
    """median time to first token."""
    ttft_p99_s: float
    """99th percentile of the time to first token."""
    engine_ttft_p50_s: float
    """median time from arrival at the engine, without the front end."""
    engine_ttft_p99_s: float
    """99th percentile of that time."""


@dataclass(frozen=True)
class SimulatorComparison:
    """Results of both simulators in a scenario."""

    scenario: Scenario
    rate_rps: float
    fast: ScenarioOutcome
    reference: ScenarioOutcome

    def errors(self) -> dict[str, float]:
        """Signed errors of the fast simulator; keys and units as in ``BARS``."""
        fast, reference = self.fast, self.reference

        def relative(name: str) -> float:
            return 100.0 * (getattr(fast, name) / getattr(reference, name) - 1.0)

        return {
            "throughput": relative("completed"),
            "TPOT": relative("tpot_s"),
            "ITL p50": relative("itl_p50_s"),
            "SLO attainment": 100.0 * (fast.good - reference.good) / reference.arrivals,
            "TTFT p50": relative("ttft_p50_s"),
            "TTFT p99": relative("ttft_p99_s"),
            "TTFT p50, no front end": relative("engine_ttft_p50_s"),
            "TTFT p99, no front end": relative("engine_ttft_p99_s"),
        }


def compare(
    scenarios: Sequence[Scenario],
    windows: int = WINDOWS,
    seeds: int = SEEDS,
    workers: int | None = None,
) -> list[SimulatorComparison]:
    """Plays every scenario in both simulators, in the order given.

    Args:
      scenarios: traffic, load and knobs.
      windows: length of an episode.
      seeds: episodes per scenario.
      workers: processes of the reference simulator; 1 stays in this process.
    """
    results: dict[int, tuple[float, ScenarioOutcome]] = {}
    jobs: list[_ReferenceJob] = []
    episodes: list[tuple[int, ReferenceEpisode]] = []
    for traffic in dict.fromkeys(scenario.traffic for scenario in scenarios):
        chosen = [i for i, scenario in enumerate(scenarios) if scenario.traffic == traffic]
        env = environment(traffic)
        timer = table_timer(traffic.load())
        actions = [make_action(**scenarios[i].knobs) for i in chosen]
        rates_rps = [
            scenarios[i].load * capacity_rps
            for i, capacity_rps in zip(chosen, _capacities_rps(env, actions), strict=True)
        ]
        keys = [episode_key(seed, "test") for seed in range(seeds)]
        cases = [
            (workload_at(env, traffic, rate_rps, seed, windows), action, keys[seed])
            for action, rate_rps in zip(actions, rates_rps, strict=True)
            for seed in range(seeds)
        ]
        totals = _play_fast(env, windows, *_stack(cases))
        for place, (index, rate_rps) in enumerate(zip(chosen, rates_rps, strict=True)):
            results[index] = (rate_rps, _fast_outcome(totals, place * seeds, seeds))
            for workload, action, key in cases[place * seeds : (place + 1) * seeds]:
                episode = ReferenceEpisode(
                    dataclasses.replace(env, workload=workload), key, timer, windows
                )
                knobs = reference_knobs(env.deployment, action)
                jobs.append(_ReferenceJob(episode.start(action), knobs, windows, env.window_s))
                episodes.append((index, episode))
    played = map_in_processes(_run_job, [(job,) for job in jobs], workers)
    return [
        SimulatorComparison(
            scenario,
            *results[index],
            _reference_outcome(
                [(e, *p) for (i, e), p in zip(episodes, played, strict=True) if i == index]
            ),
        )
        for index, scenario in enumerate(scenarios)
    ]


def fidelity_rows(
    comparisons: Sequence[SimulatorComparison],
    bars: Mapping[str, tuple[float, str]] = BARS,
    check: str = "fast vs reference",
) -> list[FidelityRow]:
    """One row per quantity: the mean absolute error, for TTFT the median.

    Args:
      comparisons: results of both simulators.
      bars: largest errors and units, as ``BARS``.
      check: name of the comparison.
    """
    rows = []
    for name, (bar, unit) in bars.items():
        signed = np.array([comparison.errors()[name] for comparison in comparisons])
        errors = np.abs(signed)
        worst = int(errors.argmax())
        middle = name.startswith("TTFT")
        detail = (
            f"{len(errors)} scenarios; mean {errors.mean():.1f}, median {np.median(errors):.1f}, "
            f"90 % within {np.quantile(errors, 0.9):.1f}, bias {np.median(signed):+.1f}; worst "
            f"{signed[worst]:+.1f}: {comparisons[worst].scenario.name}"
        )
        measured = float(np.median(errors) if middle else errors.mean())
        kind = "median" if middle else "mean"
        rows.append(
            FidelityRow.within(f"{check}: {name}", measured, bar, f"{unit} ({kind})", detail)
        )
    return rows


def fast_vs_reference() -> list[FidelityRow]:
    """Rows of the whole grid."""
    return fidelity_rows(compare(scenario_grid()))


def comparison_table(comparisons: Sequence[SimulatorComparison]) -> str:
    """Markdown: median signed and mean absolute error by traffic, load and knobs."""
    lines = [
        "| scenarios | " + " | ".join(f"{name}, {unit}" for name, (_, unit) in BARS.items()) + " |",
        "|---" * (1 + len(BARS)) + "|",
    ]

    def add(name: str, chosen: Sequence[SimulatorComparison]) -> None:
        errors = np.array([list(comparison.errors().values()) for comparison in chosen])
        cells = [
            f"{median:+.1f} ({mean:.1f})"
            for median, mean in zip(
                np.median(errors, axis=0), np.abs(errors).mean(axis=0), strict=True
            )
        ]
        lines.append(f"| {name} ({len(chosen)}) | " + " | ".join(cells) + " |")

    add("all", comparisons)
    groups: tuple[Callable[[Scenario], str], ...] = (
        lambda scenario: f"load {scenario.load:g}",
        lambda scenario: scenario.traffic.name,
        lambda scenario: scenario.settings,
    )
    for group in groups:
        names = [group(comparison.scenario) for comparison in comparisons]
        for name in dict.fromkeys(names):
            add(name, [c for c, of in zip(comparisons, names, strict=True) if of == name])
    return "\n".join(lines)


def _capacities_rps(env: ServeEnv, actions: list[ServeAction]) -> list[float]:
    """Requests per second that each action completes under overload, in the fast simulator."""
    regimes = env.workload.regimes
    rate_rps = _OVERLOAD_RPS_PER_GPU * float(env.deployment.num_gpus)
    steady = dataclasses.replace(
        regimes,
        rate_rps=regimes.rate_rps * (rate_rps / env.reward.expected_requests_per_s),
        burst_start=jnp.zeros_like(regimes.burst_start),
        cycle_amplitude=jnp.zeros_like(regimes.cycle_amplitude),
    )
    workload = dataclasses.replace(
        env.workload, regimes=steady, replay_counts=None, replay_starts=None, replay_places=None
    )
    cases = [(workload, action, episode_key(0, "validation")) for action in actions]
    completed = np.asarray(_rollouts(env, _CAPACITY_WINDOWS, *_stack(cases)).completed.sum(axis=-1))
    return [float(rps) for rps in completed[:, _CAPACITY_WARM_UP:].mean(axis=1) / env.window_s]


def _stack(cases: list[tuple[Workload, ServeAction, jax.Array]]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)


@functools.partial(jax.jit, static_argnums=1)
@functools.partial(jax.vmap, in_axes=(None, None, 0, 0, 0))
def _rollouts(
    env: ServeEnv, windows: int, workload: Workload, action: ServeAction, key: jax.Array
) -> WindowMetrics:
    """Metrics [N, windows, ...] of constant actions in the fast simulator."""
    return windows_of(dataclasses.replace(env, workload=workload), action, key, windows)


def _play_fast(
    env: ServeEnv, windows: int, workload: Workload, action: ServeAction, key: jax.Array
) -> dict[str, np.ndarray]:
    """Metrics summed over windows and classes, float64[N, ...] by name."""
    metrics = _rollouts(env, windows, workload, action, key)
    without = _rollouts(at_engine(env), windows, workload, action, key)
    sums = {
        "arrivals": metrics.arrivals.sum(axis=(1, 2)),
        "completed": metrics.completed.sum(axis=(1, 2)),
        "good": metrics.good.sum(axis=(1, 2)),
        "tpot_s": (metrics.completed * metrics.tpot_s).sum(axis=(1, 2)),
        "tokens": metrics.tokens.sum(axis=1),
        "itl_p50_s": (metrics.tokens * metrics.p50_itl_s).sum(axis=1),
        "first_tokens": metrics.first_tokens.sum(axis=(1, 2)),
        "ttft_exceeded": metrics.ttft_exceeded.sum(axis=1),
        "engine_ttft_exceeded": without.ttft_exceeded.sum(axis=1),
    }
    return {name: np.asarray(value, np.float64) for name, value in sums.items()}


def _fast_outcome(totals: dict[str, np.ndarray], start: int, count: int) -> ScenarioOutcome:
    total = {name: value[start : start + count].sum(axis=0) for name, value in totals.items()}
    first_tokens = jnp.float32(total["first_tokens"])

    def quantile(counts: str, share: float) -> float:
        exceeded = jnp.asarray(total[counts], jnp.float32)
        return float(ttft_quantile(exceeded, first_tokens, share))

    return ScenarioOutcome(
        arrivals=float(total["arrivals"]),
        completed=float(total["completed"]),
        good=float(total["good"]),
        tpot_s=float(total["tpot_s"] / total["completed"]),
        itl_p50_s=float(total["itl_p50_s"] / total["tokens"]),
        ttft_p50_s=quantile("ttft_exceeded", 0.5),
        ttft_p99_s=quantile("ttft_exceeded", 0.99),
        engine_ttft_p50_s=quantile("engine_ttft_exceeded", 0.5),
        engine_ttft_p99_s=quantile("engine_ttft_exceeded", 0.99),
    )


@dataclass(frozen=True)
class _ReferenceJob:
    simulator: ReferenceSimulator
    knobs: Knobs
    windows: int
    window_s: float


def _run_job(job: _ReferenceJob) -> tuple[np.ndarray, np.ndarray]:
    """Request log of a job, and [W, 2] tokens and median ITL of each window with a decode step."""
    windows = [
        job.simulator.advance((window + 1) * job.window_s, job.knobs)
        for window in range(job.windows)
    ]
    itl = [(w.tokens, w.p50_itl_s) for w in windows if np.isfinite(w.p50_itl_s)]
    return job.simulator.log(), np.array(itl).reshape(-1, 2)


def _reference_outcome(
    played: list[tuple[ReferenceEpisode, np.ndarray, np.ndarray]],
) -> ScenarioOutcome:
    log = np.concatenate([log for _, log, _ in played])
    tokens, itl_s = np.concatenate([itl for _, _, itl in played]).T
    episode = played[0][0]
    done = log[np.isfinite(log["finish_s"])]
    begun = log[np.isfinite(log["first_token_s"])]
    p50_s, p99_s = np.quantile(begun["ttft_s"], (0.5, 0.99))
    engine_s = begun["first_token_s"] - begun["arrival_s"]
    engine_p50_s, engine_p99_s = np.quantile(engine_s, (0.5, 0.99))
    several = done["output_tokens"] > 1
    return ScenarioOutcome(
        arrivals=float(len(log)),
        completed=float(len(done)),
        good=float(episode.meets_slo(done).sum()),
        tpot_s=float(done["tpot_s"][several].mean()),
        itl_p50_s=float(np.average(itl_s, weights=tokens)),
        ttft_p50_s=float(p50_s),
        ttft_p99_s=float(p99_s),
        engine_ttft_p50_s=float(engine_p50_s),
        engine_ttft_p99_s=float(engine_p99_s),
    )


if __name__ == "__main__":
    print(comparison_table(measured := compare(scenario_grid())))
    for row in fidelity_rows(measured):
        print(row)
