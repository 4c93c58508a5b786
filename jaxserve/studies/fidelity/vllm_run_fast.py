"""The fast simulator against a real vLLM server: the run of ``jaxserve.studies.fidelity.vllm_run``.

The requests are replayed as a recording. Iteration times come from the run's kernel profile; KV
pool, batch cap and token budget from its settings. There is no front end, because the log begins
when the engine queues a request.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.rollout import windows_of
from jaxserve.env import ServeEnv
from jaxserve.registry import make
from jaxserve.seeds import episode_key
from jaxserve.sim.machine.acceptance import MAX_DEPTH
from jaxserve.sim.machine.cost_model import IterationTimer
from jaxserve.sim.machine.deployment import DeploymentSettings
from jaxserve.sim.table.grid import BATCH_SIZES, LEAST_BUCKETS, PROMPT_LENGTHS, QUANT_TIERS
from jaxserve.sim.table.lookup import LatencyTable
from jaxserve.sim.traffic.traces import Trace
from jaxserve.spaces import REQUIRED_KNOBS, make_action
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.vllm_run import DIRECTORY, profile_timer, served
from jaxserve.tasks.spec import load_task

TASK = "trace_replay"
"""Task of the run's objectives; traffic and hardware are replaced."""
BARS = {"TTFT mean": 20.0, "TTFT p99": 20.0, "TPOT mean": 6.0}
"""Largest error that passes, percent."""
_CONTEXT = 1024.0  # tokens; context of the decoding batch while a prefill is timed


@dataclass(frozen=True)
class FastRun:
    """The run in the fast simulator."""

    ttft_s: np.ndarray
    """time to first token, float64[n] in order of arrival."""
    tpot_s: float
    """mean time per output token after the first."""


def profile_table(timer: IterationTimer, token_budget: int) -> LatencyTable:
    """Latency table of a timer without speculation and tiers."""
    lengths = PROMPT_LENGTHS[:LEAST_BUCKETS]

    def chunked_s(batch: int, prompt: int) -> float:
        """Seconds that a prompt adds to the iterations of a batch."""
        kv_tokens = batch * _CONTEXT
        room, total_s = token_budget - batch, 0.0
        idle_s = timer.iteration_s(decode_seqs=batch, kv_tokens=kv_tokens) if batch else 0.0
        for start in range(0, prompt, room):
            chunk = (min(room, prompt - start), start)
            total_s += timer.iteration_s(decode_seqs=batch, kv_tokens=kv_tokens, chunks=(chunk,))
            total_s -= idle_s
        return total_s

    rows = [
        *(
            [timer.iteration_s(decode_seqs=batch, kv_tokens=batch * context) for context in lengths]
            for batch in BATCH_SIZES
        ),
        *([chunked_s(batch, prompt) for prompt in lengths] for batch in (*BATCH_SIZES, 0)),
    ]
    seconds = np.tile(np.ravel(rows), (MAX_DEPTH + 1) * len(QUANT_TIERS))
    return LatencyTable(jnp.asarray(seconds, jnp.float32))


def run_environment(directory: Path) -> tuple[ServeEnv, int]:
    """Environment of the run's deployment with the recorded requests, and the batch cap."""
    meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    engine, cache = meta["engine_kwargs"], meta["kv_cache"]
    log = served(directory)
    trace = Trace(log[:, 0], log[:, 3].astype(np.int32), log[:, 4].astype(np.int32))
    budget = engine["max_num_batched_tokens"]
    settings = DeploymentSettings(
        token_budget=budget,
        # vLLM keeps one block back as the null block.
        kv_pool_tokens=(cache["num_gpu_blocks"] - 1) * cache["block_size"],
        frontend_s=0.0,
        frontend_tail_s=0.0,
    )
    task = dataclasses.replace(load_task(TASK), deployment=settings, horizon=1, trace=None)
    env = make(task, trace=trace, overrides={"knobs": list(REQUIRED_KNOBS)})
    env = dataclasses.replace(env, table=profile_table(profile_timer(directory), budget))
    # Silence follows the recording until all requests have been served.
    replay = env.workload.replay_counts
    assert replay is not None
    silence = jnp.zeros((_windows(log), *replay.shape[1:])).at[: len(replay)].set(replay)
    workload = dataclasses.replace(
        env.workload,
        replay_counts=silence,
        replay_starts=jnp.zeros(1, jnp.int32),
        replay_places=jnp.int32(1),
    )
    return dataclasses.replace(env, workload=workload), engine["max_num_seqs"]


def play(directory: Path) -> FastRun:
    """Plays the run in the fast simulator."""
    env, batch_cap = run_environment(directory)
    log = served(directory)
    windows = _windows(log)
    played = jax.jit(windows_of, static_argnums=3)(
        env, make_action(batch_cap=batch_cap), episode_key(0, "test"), windows
    )
    metrics = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), played)
    # First come, first served: the n-th first token belongs to the n-th request.
    done = np.concatenate([[0.0], metrics.first_tokens.sum(axis=1).cumsum()])
    number = np.arange(len(log)) + 0.5
    first_s = np.interp(number, done * len(log) / done[-1], env.window_s * np.arange(len(done)))
    return FastRun(
        ttft_s=first_s - np.sort(log[:, 0]),
        tpot_s=float((metrics.completed * metrics.tpot_s).sum() / metrics.completed.sum()),
    )


def vllm_fast_fidelity(shared: Path) -> list[FidelityRow]:
    """Rows on TTFT mean and p99 and TPOT mean of the real run; none if the run is absent.

    Args:
      shared: directory of measurements, see ``measurements.shared_data``.
    """
    directory = shared / DIRECTORY
    if not (directory / "requests.jsonl").is_file():
        return []
    real, ours = served(directory), play(directory)
    ttft_s, tpot_s = real[:, 1] - real[:, 0], (real[:, 2] - real[:, 1]) / (real[:, 4] - 1)
    rows = []
    for label, found, expected in (
        ("TTFT mean", ours.ttft_s.mean(), ttft_s.mean()),
        ("TTFT p99", np.percentile(ours.ttft_s, 99), np.percentile(ttft_s, 99)),
        ("TPOT mean", ours.tpot_s, tpot_s.mean()),
    ):
        error = 100.0 * (float(found) / float(expected) - 1.0)
        detail = (
            f"{len(real)} requests, real {expected:.4g} s, fast {error:+.1f} %; outputs "
            f"{real[:, 4].mean():.0f} tokens with deviation {real[:, 4].std():.0f}"
        )
        check = f"fast vs real vLLM: RTX 4090 {label}"
        rows.append(FidelityRow.within(check, abs(error), BARS[label], "%", detail))
    return rows


def _windows(log: np.ndarray) -> int:
    """Windows of an episode twice as long as the real run."""
    return int(2 * np.ceil(log[:, 2].max()))


if __name__ == "__main__":
    from jaxserve.studies.fidelity.measurements import shared_data

    for row in vllm_fast_fidelity(shared_data() or Path()):
        print(row)
