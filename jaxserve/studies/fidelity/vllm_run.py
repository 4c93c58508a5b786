"""The reference engine against a real vLLM server, replayed from its request log.

The run (casys-kaist/LLMServingSim, commit 5daddb2) is of vLLM 0.19 with Llama-3.1-8B on one RTX
4090: 300 requests at about 10 per second. The GPU cannot sustain this rate, so that queueing and
preemption dominate. A profile of the kernels accompanies the log and gives the iteration times.
"""

import dataclasses
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxserve.sim.fit.kernel_table import fit_kernels
from jaxserve.sim.fit.layer_profile import LayerProfile, ProfileTimer
from jaxserve.sim.machine.cost_model import CostModel, IterationTimer
from jaxserve.sim.machine.hardware import Gpu, load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import load_engine
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from jaxserve.studies.fidelity.measurements import FidelityRow

DIRECTORY = "vllm_rtx4090"
TTFT_BAR, TPOT_BAR = 0.05, 0.03
MODEL, LAYERS = "llama-3.1-8b", 32
RTX_4090_MEMORY_BYTES = 25_250_627_584
"""As the run's metadata have it."""
RTX_4090_BYTES_PER_S, RTX_4090_FLOPS = 1.008e12, 165.2e12
"""Memory bandwidth and dense bf16 rate with float32 sums, from the data sheet."""
VERSION = "0.19.0"
HOST_S = load_engine("vllm", VERSION).host_s
"""Seconds per iteration that vLLM 0.19 adds to the profiled kernels, the same in both runs of this
version: vLLM composes a step while the GPU computes the previous one."""
DATA_SHEET_BAR = 0.2
"""Largest relative error if the data sheet replaces the profile."""
VISIBLE_HOST_S = 5e-4
"""Second value on the page: the host time if half a millisecond were not hidden."""


def profile_timer(directory: Path, host_s: float = HOST_S) -> ProfileTimer:
    """Iteration times from the profile beside the log."""
    return ProfileTimer(read_profile(directory), LAYERS, host_s)


def data_sheet_gpu() -> Gpu:
    """The RTX 4090 without a profile.

    Kernels have the efficiency of the L40S, a GPU of the same generation, at the memory bandwidth
    and bf16 rate of the RTX 4090's data sheet.
    """
    like = load_gpu("l40s-48gb")
    return dataclasses.replace(
        like,
        memory_bytes=RTX_4090_MEMORY_BYTES,
        bandwidth_bytes_per_s=RTX_4090_BYTES_PER_S,
        linear=tuple(dataclasses.replace(f, flops_per_s=RTX_4090_FLOPS) for f in like.linear),
        host_s=HOST_S,
        elementwise_s_per_token=like.elementwise_s_per_token
        * (like.bandwidth_bytes_per_s / RTX_4090_BYTES_PER_S),
    )


def fitted_timer(directory: Path) -> CostModel:
    """Iteration times of the table that ``table fit-kernels`` makes of the profile."""
    profile = sorted(directory.glob("profile_*.csv"))
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch) / "fitted.parquet"
        report = fit_kernels(profile, data_sheet_gpu(), load_model(MODEL), table)
    return report.table.metadata.cost_model


def read_profile(directory: Path) -> LayerProfile:
    """The kernel profile of a run."""
    return LayerProfile.read(
        *(directory / f"profile_{name}.csv" for name in ("dense", "per_sequence", "attention"))
    )


def served(directory: Path) -> np.ndarray:
    """The real run, float64[n, 5]: arrival, first token, last token (s), prompt, output tokens.

    The engine's queueing of a request counts as its arrival: the three times share a clock.
    """
    with (directory / "requests.jsonl").open(encoding="utf-8") as file:
        log = [json.loads(line) for line in file]
    names = ("queued_ts", "first_token_ts", "last_token_ts", "input_toks", "output_toks")
    table = np.array([[row[name] for name in names] for row in log], float)
    table[:, :3] -= table[:, 0].min()
    return table


def requests_of(directory: Path) -> list[Request]:
    """The requests of the real run, in the order of its log."""
    return [
        Request(i, arrival_s, int(prompt), int(output))
        for i, (arrival_s, _, _, prompt, output) in enumerate(served(directory).tolist())
    ]


@dataclass(frozen=True)
class Statistic:
    """A statistic of latency in the real run, with its bar."""

    label: str
    """name on the page."""
    quantity: str
    """field of ``LOG_DTYPE``."""
    reduce: Callable[[np.ndarray], np.floating]
    """statistic of all requests."""
    real: np.ndarray
    """float64[n], seconds of each request."""
    bar: float
    """largest relative error."""

    @property
    def real_s(self) -> float:
        """Value in the real run."""
        return float(self.reduce(self.real))

    def error(self, replayed: np.ndarray) -> float:
        """Relative error of a replay, rows of ``LOG_DTYPE``."""
        return float(self.reduce(replayed[self.quantity])) / self.real_s - 1


def statistics(real: np.ndarray) -> list[Statistic]:
    """TTFT mean and p99 and TPOT mean.

    Args:
      real: result of ``served``.
    """
    ttft_s, tpot_s = real[:, 1] - real[:, 0], (real[:, 2] - real[:, 1]) / (real[:, 4] - 1)
    return [
        Statistic("TTFT mean", "ttft_s", np.mean, ttft_s, TTFT_BAR),
        Statistic("TTFT p99", "ttft_s", lambda x: np.percentile(x, 99), ttft_s, TTFT_BAR),
        Statistic("TPOT mean", "tpot_s", np.mean, tpot_s, TPOT_BAR),
    ]


def replay(
    directory: Path, prefix_caching: bool = True, timer: IterationTimer | None = None
) -> np.ndarray:
    """Replays the run on the reference engine: ``LOG_DTYPE`` rows in the order of the real log.

    Args:
      directory: directory of the run.
      prefix_caching: whether preempted sequences find their KV in the prefix cache.
      timer: iteration times; None for the profile beside the log.
    """
    meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    engine, cache = meta["engine_kwargs"], meta["kv_cache"]
    # vLLM keeps one block back as the null block.
    blocks = cache["num_gpu_blocks"] - 1
    return run_requests(
        requests_of(directory),
        timer or profile_timer(directory),
        GpuKnobs(engine["max_num_seqs"], blocks * cache["block_size"]),
        SchedulerSettings(
            token_budget=engine["max_num_batched_tokens"],
            block_tokens=cache["block_size"],
            prefix_caching=prefix_caching,
        ),
    )


def vllm_fidelity(shared: Path) -> list[FidelityRow]:
    """Rows on TTFT mean and p99 and TPOT mean of the real run; none if the run is absent.

    Args:
      shared: directory of measurements, see ``measurements.shared_data``.
    """
    directory = shared / DIRECTORY
    if not (directory / "requests.jsonl").is_file():
        return []
    real = served(directory)
    ours, forgetful = replay(directory), replay(directory, prefix_caching=False)
    visible = replay(directory, timer=profile_timer(directory, VISIBLE_HOST_S))
    unmeasured = replay(directory, timer=CostModel.of(data_sheet_gpu(), load_model(MODEL)))
    fitted = replay(directory, timer=fitted_timer(directory))
    rows = []
    for each in statistics(real):
        error, without, slower, scaled, by_fit = map(
            each.error, (ours, forgetful, visible, unmeasured, fitted)
        )
        detail = (
            f"{len(real)} requests, real {each.real_s:.4g} s, ours {100 * error:+.1f} %, "
            f"{ours['preemptions'].sum()} preemptions; {100 * without:+.1f} % if preempted "
            "sequences did not find their own KV in the prefix cache; host time "
            f"{1e3 * HOST_S:g} ms; as jaxserve simulate --profile"
        )
        check = f"reference vs real vLLM: RTX 4090 {each.label}"
        rows.append(FidelityRow.within(check, 100 * abs(error), 100 * each.bar, "%", detail))
        rows.append(
            FidelityRow.within(
                f"{check}, host time {1e3 * VISIBLE_HOST_S:g} ms",
                100 * abs(slower),
                100 * each.bar,
                "%",
                f"the same with that host time in every step: {100 * slower:+.1f} %",
            )
        )
        rows.append(
            FidelityRow.within(
                f"{check}, table fit-kernels",
                100 * abs(by_fit),
                100 * each.bar,
                "%",
                f"the same with the table that jaxserve table fit-kernels makes of the profile: "
                f"{100 * by_fit:+.1f} %",
            )
        )
        rows.append(
            FidelityRow.within(
                f"{check}, data sheet in place of the profile",
                100 * abs(scaled),
                100 * DATA_SHEET_BAR,
                "%",
                f"the same with the L40S's efficiencies at the data sheet's peaks: "
                f"{100 * scaled:+.1f} %",
            )
        )
    return rows
