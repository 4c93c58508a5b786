"""Prefix caching: the reference simulator against a plain LRU cache and the fast simulator.

The trace (kvcache-ai/Mooncake, commit 3b5a594) names the blocks of 512 tokens of its prompts.

    python -m jaxserve.studies.fidelity.prefix_reuse
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.reference_rollout import ReferenceEpisode, reference_knobs, table_timer
from jaxserve.agents.rollout import windows_of
from jaxserve.env import ServeEnv
from jaxserve.registry import make, stack
from jaxserve.runtime.process_pool import map_in_processes
from jaxserve.seeds import episode_key
from jaxserve.sim.fast.latency import ttft_quantile
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.settings import GpuKnobs, Knobs, SchedulerSettings
from jaxserve.sim.reference.simulator import ReferenceSimulator
from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.traffic.traces import Trace, load_trace
from jaxserve.spaces import REQUIRED_KNOBS, make_action
from jaxserve.studies.fidelity.measurements import FidelityRow, shared_data
from jaxserve.studies.fidelity.scenarios import at_engine
from jaxserve.tasks.spec import load_task
from jaxserve.types import ServeAction, WindowMetrics

FILE = "mooncake/conversation_first_half.jsonl.gz"
CACHE_TOKENS = (400_000, 1_600_000, 6_400_000, 20_000_000)
HIT_BAR, TTFT_BAR, TPOT_BAR = 5.0, 20.0, 5.0
HIT_REQUESTS = 3000

LONGEST_PROMPT = 8192
"""Longest prompt, tokens, where the simulators are compared on short prompts."""
WINDOWS = 200
WHOLE_WINDOWS = 600
_HARDWARE = "h100-sxm-80gb"
_SKIPPED_WINDOWS = 40  # the caches of the reference simulator fill meanwhile


@dataclass(frozen=True)
class CacheScenario:
    """The trace at a speed, on a deployment."""

    time_scale: float
    """factor on the recorded arrival rate."""
    num_gpus: int
    """replicas of the model."""
    kv_pool_tokens: int
    """capacity of a GPU's KV pool, tokens."""

    @property
    def name(self) -> str:
        """Short name for reports."""
        return f"{self.num_gpus} x {self.kv_pool_tokens:,} tokens, trace x{self.time_scale:g}"


SCENARIOS = tuple(
    CacheScenario(scale * gpus, gpus, pool)
    for gpus in (1, 2)
    for scale in (2.0, 4.0)
    for pool in (400_000, 1_600_000, 6_400_000)
)
"""Scenarios of the short prompts."""

WHOLE = tuple(
    CacheScenario(scale * gpus, gpus, pool)
    for gpus in (1, 2, 4)
    for scale in (0.15, 0.25, 0.35)
    for pool in (400_000, 1_600_000)
)
"""Scenarios of the whole trace: prompts have 12,800 tokens on average and at most 123,000."""


class _EvenTimer:
    """Iteration times at which the engine keeps up with the trace."""

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        return 4e-3 + 8e-6 * sum(chunk for chunk, _ in chunks)


def lru_hit_share(trace: Trace, cache_tokens: int) -> float:
    """Share of the prompt tokens that a plain LRU cache of the trace's own blocks finds.

    The cache holds prompts only and knows neither time nor running requests.
    """
    assert trace.blocks is not None
    cache: OrderedDict[int, None] = OrderedDict()
    room, found = cache_tokens // trace.blocks.tokens, 0
    for prompt, tokens in enumerate(trace.prompt_tokens.tolist()):
        names = trace.blocks.of(prompt).tolist()
        hits = 0
        while hits < len(names) and names[hits] in cache:
            hits += 1
        found += min(hits * trace.blocks.tokens, tokens)
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > room:
            cache.popitem(last=False)
    return found / int(trace.prompt_tokens.sum(dtype=np.int64))


def engine_hit_share(trace: Trace, cache_tokens: int) -> float:
    """Share of the prompt tokens that the reference engine finds in a KV pool of this size."""
    log = run_requests(
        trace_requests(trace),
        _EvenTimer(),
        GpuKnobs(batch_cap=256, kv_capacity_tokens=cache_tokens),
        SchedulerSettings(token_budget=8192, prefix_caching=True),
    )
    return float(log["cached_tokens"].sum() / log["prompt_tokens"].sum())


@dataclass(frozen=True)
class CacheOutcome:
    """Latencies of a simulator in a scenario."""

    ttft_p50_s: float
    """median time to first token."""
    ttft_p99_s: float
    """99th percentile of the time to first token."""
    engine_ttft_p50_s: float
    """median time from arrival at the engine, without the front end."""
    engine_ttft_p99_s: float
    """99th percentile of that time."""
    tpot_s: float
    """mean time per output token after the first."""
    found: float
    """share of the prompt tokens found in the cache; NaN in the fast simulator."""


def compare(
    trace: Trace, scenarios: tuple[CacheScenario, ...], windows: int
) -> list[tuple[CacheOutcome, CacheOutcome]]:
    """Plays the same requests in both simulators.

    Args:
      trace: recorded requests.
      scenarios: speeds and deployments.
      windows: length of an episode.

    Returns:
      (fast, reference) of each scenario.
    """
    action = make_action(batch_cap=128)
    spec = dataclasses.replace(load_task("trace_replay"), horizon=windows)
    timer = table_timer(dataclasses.replace(spec, hardware=_HARDWARE))
    key = episode_key(0, "test")
    envs, jobs = [], []
    for scenario in scenarios:
        faster = dataclasses.replace(trace, arrival_s=trace.arrival_s / scenario.time_scale)
        deployment = {
            "num_gpus": scenario.num_gpus,
            "kv_pool_tokens": scenario.kv_pool_tokens,
            "prefix_caching": True,
        }
        env = make(
            spec,
            hardware=_HARDWARE,
            trace=dataclasses.replace(
                faster.within_table(), tick_s=None
            ),  # no warning: the page states the tick
            overrides={"knobs": list(REQUIRED_KNOBS), "deployment": deployment},
        )
        workload = env.workload
        assert workload.replay_counts is not None
        workload = dataclasses.replace(
            workload,
            replay_counts=workload.replay_counts[:windows],
            replay_starts=jnp.zeros(1, jnp.int32),
            replay_places=jnp.int32(1),
        )
        env = dataclasses.replace(env, workload=workload)
        episode = ReferenceEpisode(env, key, timer, windows, faster)
        jobs.append((episode.start(action), reference_knobs(env.deployment, action), windows))
        envs.append(env)
    fast: dict[int, CacheOutcome] = {}
    # Tables of reuse have a row for each number of GPUs.
    for gpus in {scenario.num_gpus for scenario in scenarios}:
        chosen = [i for i, scenario in enumerate(scenarios) if scenario.num_gpus == gpus]
        several = stack([envs[i] for i in chosen])
        both = [_rollouts(each, windows, action, key) for each in (several, at_engine(several))]
        for place, i in enumerate(chosen):
            fast[i] = _fast_outcome(*jax.tree.map(lambda leaf, at=place: leaf[at], both))
    played = map_in_processes(_play_reference, jobs)
    return [(fast[i], reference) for i, reference in enumerate(played)]


@functools.partial(jax.jit, static_argnums=1)
def _rollouts(envs: ServeEnv, windows: int, action: ServeAction, key: jax.Array) -> WindowMetrics:
    """Metrics [N, windows, ...] of a constant action in stacked environments."""
    return jax.vmap(lambda env: windows_of(env, action, key, windows))(envs)


def _fast_outcome(metrics: WindowMetrics, without_front_end: WindowMetrics) -> CacheOutcome:
    later, at_engine = jax.tree.map(
        lambda leaf: leaf[_SKIPPED_WINDOWS:], (metrics, without_front_end)
    )
    completed = later.completed.sum()

    def quantile(seen: WindowMetrics, at: float) -> float:
        return float(ttft_quantile(seen.ttft_exceeded.sum(axis=0), seen.first_tokens.sum(), at))

    return CacheOutcome(
        *(quantile(seen, at) for seen in (later, at_engine) for at in (0.5, 0.99)),
        tpot_s=float((later.completed * later.tpot_s).sum() / completed),
        found=float("nan"),
    )


def _play_reference(simulator: ReferenceSimulator, knobs: Knobs, windows: int) -> CacheOutcome:
    for window in range(windows):
        simulator.advance(float(window + 1), knobs)
    log = simulator.log()
    log = log[log["arrival_s"] >= _SKIPPED_WINDOWS]
    first, done = log[np.isfinite(log["ttft_s"])], log[np.isfinite(log["finish_s"])]
    done = done[done["output_tokens"] > 1]
    at_engine_s = first["first_token_s"] - first["arrival_s"]
    return CacheOutcome(
        *(
            float(np.quantile(ttft_s, at))
            for ttft_s in (first["ttft_s"], at_engine_s)
            for at in (0.5, 0.99)
        ),
        tpot_s=float(done["tpot_s"].mean()),
        found=float(first["cached_tokens"].sum() / first["prompt_tokens"].sum()),
    )


def prefix_fidelity(shared: Path) -> list[FidelityRow]:
    """Rows on hit shares against a plain cache and on latencies of both simulators.

    Without the trace there are none.

    Args:
      shared: directory of measurements, see ``measurements.shared_data``.
    """
    if not (shared / FILE).is_file():
        return []
    trace = load_trace(shared / FILE)
    about = f"prompts up to {LONGEST_PROMPT:,} tokens"
    return (
        _hit_rows(_first(trace, HIT_REQUESTS))
        + _latency_rows(about, short_prompts(trace), SCENARIOS, WINDOWS)
        + _latency_rows("whole trace", trace, WHOLE, WHOLE_WINDOWS)
    )


def _hit_rows(trace: Trace) -> list[FidelityRow]:
    jobs = [(trace, size) for size in CACHE_TOKENS]
    rows = []
    for size, ours in zip(CACHE_TOKENS, map_in_processes(engine_hit_share, jobs), strict=True):
        plain = lru_hit_share(trace, size)
        detail = f"{len(trace)} requests; plain LRU {100 * plain:.1f} %, ours {100 * ours:.1f} %"
        rows.append(
            FidelityRow.within(
                f"prefix reuse: hit share with {size / 1e6:g} M tokens",
                100 * abs(ours - plain),
                HIT_BAR,
                "points",
                detail,
            )
        )
    return rows


def _latency_rows(
    about: str, trace: Trace, scenarios: tuple[CacheScenario, ...], windows: int
) -> list[FidelityRow]:
    pairs = compare(trace, scenarios, windows)
    rows = []
    for label, name, bar in (
        ("TTFT p50", "ttft_p50_s", TTFT_BAR),
        ("TTFT p99", "ttft_p99_s", TTFT_BAR),
        ("TTFT p50, no front end", "engine_ttft_p50_s", TTFT_BAR),
        ("TTFT p99, no front end", "engine_ttft_p99_s", TTFT_BAR),
        ("TPOT", "tpot_s", TPOT_BAR),
    ):
        signed = np.array([100 * (getattr(f, name) / getattr(r, name) - 1) for f, r in pairs])
        worst = int(np.abs(signed).argmax())
        found = [100 * reference.found for _, reference in pairs]
        detail = (
            f"{len(pairs)} scenarios, {min(found):.0f} to {max(found):.0f} % of the prompts are "
            f"found; mean {np.abs(signed).mean():.1f}, bias {np.median(signed):+.1f}; worst "
            f"{signed[worst]:+.1f}: {scenarios[worst].name}"
        )
        rows.append(
            FidelityRow.within(
                f"prefix reuse: fast vs reference, {about}, {label}",
                float(np.median(np.abs(signed))),
                bar,
                "% (median)",
                detail,
            )
        )
    return rows


def _first(trace: Trace, count: int) -> Trace:
    return trace.chosen(np.arange(len(trace)) < count)


def short_prompts(trace: Trace, longest: int = LONGEST_PROMPT) -> Trace:
    """The trace without prompts of more than ``longest`` tokens."""
    return trace.chosen(trace.prompt_tokens <= longest)


if __name__ == "__main__":
    data = shared_data()
    if data is None:
        raise SystemExit("there is no trace to compare with")
    recorded = load_trace(data / FILE)
    for requests, several, windows in (
        (short_prompts(recorded), SCENARIOS, WINDOWS),
        (recorded, WHOLE, WHOLE_WINDOWS),
    ):
        pairs = compare(requests, several, windows)
        for scenario, (fast, reference) in zip(several, pairs, strict=True):
            print(scenario.name, fast, reference, sep="\n  ")
