"""The reference engine against a real vLLM server of a model with experts, from its request log.

The run (casys-kaist/LLMServingSim, commit 5daddb2) is of vLLM 0.19 with Qwen3-30B-A3B on two RTX
PRO 6000. Each attends for requests of its own, and the two share the experts. A profile of the
kernels accompanies the log. Both engines step together: the reference engine has both limits, and a
step ends with the busier engine. The number of experts in a step follows from the spread of routing
fitted to other servers (``served_fit``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from scipy.optimize import OptimizeResult, minimize_scalar

from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.fit.layer_profile import ProfileTimer
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from jaxserve.studies.fidelity import vllm_run
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.served_rows import shipped
from jaxserve.studies.fidelity.vllm_run import (
    HOST_S,
    VISIBLE_HOST_S,
    read_profile,
    requests_of,
    served,
    statistics,
)

DIRECTORY = "moe/vllm_rtxpro6000_qwen3_30b_a3b"
MODEL = "qwen3-30b-a3b"
ENGINES = 2
EXPERTS, PER_TOKEN = 128, 8
SPREAD_OF = (
    "h100-sxm-80gb"  # no file describes the RTX PRO 6000; all GPU files have the same spread
)
_NO_LIMIT = 10_000_000  # KV tokens; the server never ran out of KV


class ExpertTimer(ProfileTimer):
    """``ProfileTimer`` with one engine's experts and the exchange between both engines."""

    def __init__(self, directory: Path, host_s: float = HOST_S) -> None:
        model = load_model(MODEL)
        super().__init__(read_profile(directory), model.layers, host_s)
        columns = read_columns(directory / "profile_moe.csv")
        self._sizes = np.unique(columns["tokens"])
        self._curves = []
        for size in self._sizes:
            rows = columns["tokens"] == size
            self._curves.append((columns["activated_experts"][rows], columns["time_us"][rows]))
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        self._link_s = config["link_latency"] * 1e-9
        self._byte_s = 1e-9 / config["link_bw"]
        self._vector_bytes = 2 * model.hidden
        self._spread = shipped(SPREAD_OF, MODEL, Stack())[0].routing_spread

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration of both engines."""
        alone_s, most = 0.0, 0
        for rank in range(ENGINES):
            seqs = (decode_seqs + rank) // ENGINES  # the first prefills the odd prompt
            own = chunks[rank::ENGINES]
            context = kv_tokens / decode_seqs if decode_seqs else 0.0
            step_s = super().iteration_s(decode_seqs=seqs, kv_tokens=seqs * context, chunks=own)
            alone_s = max(alone_s, step_s)
            most = max(most, seqs + sum(chunk for chunk, _ in own))
        tokens = decode_seqs + sum(chunk for chunk, _ in chunks)
        # To the experts and back; each way the busier engine sends its tokens.
        exchange_s = 2 * (self._link_s + most * self._vector_bytes * self._byte_s)
        return alone_s + self._layers * (self.experts_s(tokens) + exchange_s)

    def experts_s(self, tokens: int) -> float:
        """Seconds of one layer's experts on one engine, for its share of all tokens' choices."""
        touched = EXPERTS / ENGINES * (1 - (1 - PER_TOKEN / EXPERTS) ** tokens**self._spread)
        times = [np.interp(touched, experts, us) for experts, us in self._curves]
        return float(np.interp(tokens / ENGINES, self._sizes, times)) * 1e-6


def replay(directory: Path, host_s: float = HOST_S) -> np.ndarray:
    """Replays the run on the reference engine: ``LOG_DTYPE`` rows in the order of the real log."""
    meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    engine = meta["engine_kwargs"]
    return run_requests(
        requests_of(directory),
        ExpertTimer(directory, host_s),
        GpuKnobs(ENGINES * engine["max_num_seqs"], _NO_LIMIT),
        SchedulerSettings(token_budget=ENGINES * engine["max_num_batched_tokens"]),
    )


def fitted_host_s(shared: Path, third: int | None = None) -> tuple[float, float]:
    """Host time of a step of vLLM 0.19, fitted to both of its runs.

    This time has the least mean error of the runs' statistics, from 0 to a millisecond.

    Args:
      shared: directory of measurements, with both runs.
      third: requests that are held out, every third of them from this one on; None for none.

    Returns:
      the host time, s, and the mean relative error of the held-out requests' statistics; that of
      all requests without a third.
    """
    runs: list[tuple[np.ndarray, Callable[[float], np.ndarray]]] = [
        (
            served(shared / vllm_run.DIRECTORY),
            lambda host_s: vllm_run.replay(
                shared / vllm_run.DIRECTORY,
                timer=vllm_run.profile_timer(shared / vllm_run.DIRECTORY, host_s),
            ),
        ),
        (served(shared / DIRECTORY), lambda host_s: replay(shared / DIRECTORY, host_s)),
    ]

    def error(host_s: float, held_out: bool) -> float:
        errors = []
        for real, played in runs:
            judged = (np.arange(len(real)) % 3 == third) == held_out
            ours = played(host_s)[judged]
            errors += [abs(each.error(ours)) for each in statistics(real[judged])]
        return float(np.mean(errors))

    found = minimize_scalar(
        error, bounds=(0.0, 1e-3), args=(False,), method="bounded", options={"xatol": 1e-5}
    )
    host_s = float(cast(OptimizeResult, found).x)
    return host_s, error(host_s, third is not None)


def vllm_expert_fidelity(shared: Path) -> list[FidelityRow]:
    """Rows on TTFT and TPOT of the real run, with and without host time; none if it is absent.

    Args:
      shared: directory of measurements, see ``measurements.shared_data``.
    """
    directory = shared / DIRECTORY
    if not (directory / "requests.jsonl").is_file():
        return []
    real = served(directory)
    rows = []
    for host_s in (HOST_S, VISIBLE_HOST_S):
        ours = replay(directory, host_s)
        for each in statistics(real):
            error = each.error(ours)
            suffix = "" if host_s == HOST_S else f", host time {1e3 * host_s:g} ms"
            detail = (
                f"{len(real)} requests, real {each.real_s:.4g} s, ours {100 * error:+.1f} %; "
                f"host time {1e3 * host_s:g} ms"
            )
            check = f"reference vs real vLLM: RTX PRO 6000, experts, {each.label}{suffix}"
            rows.append(FidelityRow.within(check, 100 * abs(error), 100 * each.bar, "%", detail))
    return rows
