"""The reference engine against Vidur, request by request on Vidur's own workload.

The reference rows come from microsoft/vidur (commit 7d47513): Llama-3-8B on one A100-80GB, Sarathi
scheduler with chunks of 2048 tokens. The comparison is about scheduling. The engine therefore gets
Vidur's view of the hardware: the profile of the linear layers, no output head and no CPU time,
attention from the A100 kernels that replaced the missing attention profile, and Vidur's roundings.

The workload is Vidur's to the last request. Vidur draws gaps from Python's Mersenne Twister with
seed 42 and clips them at three means, which makes the true rate 5 % higher than the nominal one.
Conversation rows take the lengths of the Azure trace in a permutation with the same seed. Neither
sampling noise nor seeds enter the comparison.

Two properties are inferred from the reference rows, because no file states them: the share of early
requests left out of latencies (``WARM_UP``), and the cost of a chunk behind a prefix
(``VidurTimer``). No bar depends on either: without both, the median errors are 1.3 % in throughput,
1.5 % in TPOT, 2.9 % and 8.6 % in TTFT p50 and p99.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.fit.kernel_rows import decode_rows, prefill_rows
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings
from jaxserve.studies.fidelity.measurements import FidelityRow

ROWS_FILE = "vidur/vidur_reference.csv"
TRACE_FILE = "traces/AzureLLMInferenceTrace_conv.csv"
PREFILL_FILE = "kernels/a100_sxm_attention_vllm_0.14.0_context_attention_perf.parquet"
DECODE_FILE = "kernels/a100_sxm_attention_vllm_0.14.0_generation_attention_perf.parquet"

THROUGHPUT_BAR, TPOT_BAR, TTFT_BAR = 0.02, 0.08, 0.12
"""Largest median relative errors that pass."""

SEED = 42
LONGEST_GAP = 3.0
LONGEST_REQUEST_TOKENS = 8192
WARM_UP = 0.2
"""Share of earliest requests left out of latencies, in rows below saturation."""
SATURATED = 9.0
"""Value of the column ``frac`` in rows with all requests at time 0."""
BLOCK_TOKENS, WATERMARK = 16, 0.01
TOKEN_ROUNDING, KV_ROUNDING = 8, 64
COMPANY = 1.1
"""Vidur's factor on attention of several decodes, and of several chunks, in one iteration."""

# Fit to the linear and elementwise layers in Vidur's mlp.csv for this model and GPU: bandwidth and
# arithmetic efficiency, exponent of the roofline, constant seconds.
BANDWIDTH_EFFICIENCY, FLOPS_EFFICIENCY, P_NORM, CONSTANT_S = 0.918, 0.655, 1.553, 2.363e-3


class VidurTimer:
    """Iteration times by Vidur's rules from its profile; an ``IterationTimer``.

    Tokens of linear layers are rounded up to 8 and KV of attention to 64. Decodes count as equally
    long, and several chunks as one chunk of the same work.
    """

    def __init__(self, directory: Path) -> None:
        gpu, model = load_gpu("a100-sxm-80gb"), load_model("llama-3.1-8b")
        self._layers = model.layers
        bytes_per_s = gpu.bandwidth_bytes_per_s * BANDWIDTH_EFFICIENCY
        self._read_s = 2 * model.body_parameters / bytes_per_s
        flops_per_s = gpu.linear[0].flops_per_s * FLOPS_EFFICIENCY
        self._token_s = 2 * model.body_parameters / flops_per_s
        prefill = prefill_rows(directory / PREFILL_FILE, model)
        alone = prefill.where(prefill.size == 1)
        order = np.argsort(alone.length)
        self._log_length = np.log(alone.length[order])
        self._log_prefill_s = np.log(alone.seconds[order])
        decode = decode_rows(directory / DECODE_FILE, model)
        self._batches = np.unique(decode.size)
        self._by_batch = []
        for batch in self._batches:
            rows = decode.where(decode.size == batch)
            order = np.argsort(rows.length)
            self._by_batch.append((rows.length[order], rows.seconds[order]))
        self._decode_s = lru_cache(maxsize=None)(self._interpolate_decode_s)

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; Vidur knows neither speculation nor tiers."""
        tokens = _round_up(decode_seqs + sum(chunk for chunk, _ in chunks), TOKEN_ROUNDING)
        roofline_s = (self._read_s**P_NORM + (self._token_s * tokens) ** P_NORM) ** (1 / P_NORM)
        attention_s = 0.0
        if decode_seqs:
            context = _round_up(int(kv_tokens / decode_seqs), KV_ROUNDING)
            attention_s += self._decode_s(decode_seqs, context) * _company(decode_seqs)
        if chunks:
            chunk = math.sqrt(sum(chunk * chunk for chunk, _ in chunks))
            prefix = sum(_round_up(prefix, KV_ROUNDING) for _, prefix in chunks)
            attention_s += self._prefill_s(chunk, prefix) * _company(len(chunks))
        return CONSTANT_S + roofline_s + self._layers * attention_s

    def _prefill_s(self, chunk: float, prefix: int) -> float:
        """Seconds of one layer's attention of a chunk.

        The kernels were measured without a prefix. The profile extends them by pairs of queries and
        keys. Rows of 4096 tokens show that the profile charges a later chunk
        ``prefix + chunk`` keys for every query, although causality saves half of the pairs inside
        the chunk.
        """
        keys = chunk + prefix
        whole_s = math.exp(np.interp(math.log(keys), self._log_length, self._log_prefill_s))
        return whole_s * 2 * chunk / keys if prefix else whole_s

    def _interpolate_decode_s(self, batch: int, context: int) -> float:
        """Seconds of one layer's attention for ``batch`` sequences of ``context`` KV tokens."""
        at_context = [np.interp(context, *column) for column in self._by_batch]
        return float(np.interp(batch, self._batches, at_context))


@dataclass(frozen=True)
class RowErrors:
    """Relative errors of the reference engine in one row of Vidur's."""

    name: str
    saturated: bool
    throughput: float
    tpot: float
    ttft_p50: float
    ttft_p99: float


def trace_lengths(directory: Path) -> np.ndarray:
    """Prompt and output tokens of the conversation trace in Vidur's order, int64[n, 2].

    A request over the limit loses tokens from prompt and output in proportion.
    """
    columns = read_columns(directory / TRACE_FILE)
    tokens = np.stack([columns["ContextTokens"], columns["GeneratedTokens"]], axis=1)
    total = tokens.sum(axis=1, keepdims=True)
    excess = np.maximum(total - LONGEST_REQUEST_TOKENS, 0)
    tokens = np.maximum(tokens - np.ceil(excess * tokens / total), 1).astype(np.int64)
    return tokens[np.random.RandomState(SEED).permutation(len(tokens))]


def workload(row: Mapping[str, Any], lengths: np.ndarray) -> list[Request]:
    """The requests of a reference row.

    Args:
      row: columns of the row; prompt 0 stands for the lengths of the trace.
      lengths: result of ``trace_lengths``.
    """
    draw, rate_rps = random.Random(SEED).random, row["qps"]
    requests, now = [], 0.0
    for i in range(int(row["n_req"])):
        now += min(-math.log(1 - draw()), LONGEST_GAP) / rate_rps
        prompt, output = lengths[i] if row["prompt"] == 0 else (row["prompt"], row["output"])
        requests.append(Request(i, now, int(prompt), int(output)))
    return requests


def compare(row: Mapping[str, Any], timer: VidurTimer, lengths: np.ndarray) -> RowErrors:
    """Serves the workload of a row and compares the result with Vidur's."""
    knobs = GpuKnobs(int(row["batch_cap"]), int(row["kv_blocks"]) * BLOCK_TOKENS)
    settings = SchedulerSettings(block_tokens=BLOCK_TOKENS, watermark=WATERMARK)
    log = run_requests(workload(row, lengths), timer, knobs, settings)
    tokens_per_s = log["output_tokens"].sum() / log["finish_s"].max()
    saturated = bool(row["frac"] == SATURATED)
    kept = log if saturated else log[int(WARM_UP * len(log)) :]
    ttft_ms = kept["ttft_s"] * 1e3
    tpot_ms = kept["tpot_s"][kept["output_tokens"] > 1] * 1e3
    prompt = "trace" if row["prompt"] == 0 else f"prompt {row['prompt']:.0f}"
    return RowErrors(
        name=f"{row['load']}, batch cap {row['batch_cap']:.0f}, {prompt}",
        saturated=saturated,
        throughput=tokens_per_s / row["out_tok_s"] - 1,
        tpot=tpot_ms.mean() / row["tpot_mean_ms"] - 1,
        ttft_p50=np.percentile(ttft_ms, 50) / row["ttft_p50_ms"] - 1,
        ttft_p99=np.percentile(ttft_ms, 99) / row["ttft_p99_ms"] - 1,
    )


def compare_all(directory: Path) -> list[RowErrors]:
    """Errors in every reference row under ``directory``."""
    columns = read_columns(directory / ROWS_FILE)
    timer, lengths = VidurTimer(directory), trace_lengths(directory)
    errors = []
    for i in range(len(columns["load"])):
        row = {name: column[i] for name, column in columns.items()}
        errors.append(compare(row, timer, lengths))
    return errors


def vidur_fidelity(directory: Path) -> list[FidelityRow]:
    """Rows on throughput, TPOT and TTFT against Vidur; none if Vidur's rows are absent.

    Throughput is judged at saturation only: below saturation it equals the arrival rate.

    Args:
      directory: directory of measurements, see ``measurements.shared_data``.
    """
    if not (directory / ROWS_FILE).is_file():
        return []
    errors = compare_all(directory)
    saturated = [row for row in errors if row.saturated]
    return [
        _summary("throughput at saturation", "throughput", saturated, THROUGHPUT_BAR, _STEPS),
        _summary("TPOT", "tpot", errors, TPOT_BAR, _STEPS),
        _summary("TTFT p50", "ttft_p50", errors, TTFT_BAR, _QUEUE),
        _summary("TTFT p99", "ttft_p99", errors, TTFT_BAR, _QUEUE),
    ]


_STEPS = (
    "Vidur's profile climbs in tiles, by 37 % from 128 to 136 tokens; its smooth fit is up to "
    "17 % off"
)
_QUEUE = _STEPS + ", and near saturation waiting magnifies 2 % of service time tenfold"


def _summary(label: str, field: str, rows: list[RowErrors], bar: float, reason: str) -> FidelityRow:
    values = np.array([getattr(row, field) for row in rows])
    worst = int(np.abs(values).argmax())
    detail = (
        f"median of {len(rows)} rows, {np.sum(np.abs(values) <= bar)} of them within the bar; "
        f"mean {100 * np.abs(values).mean():.1f} %, bias {100 * values.mean():+.1f} %, worst "
        f"{100 * values[worst]:+.1f} % ({rows[worst].name}); {reason}"
    )
    median = float(np.median(np.abs(values)))
    return FidelityRow.within(
        f"reference vs Vidur: {label}", 100 * median, 100 * bar, "% (median)", detail
    )


def _round_up(tokens: int, multiple: int) -> int:
    return -(-tokens // multiple) * multiple


def _company(count: int) -> float:
    return COMPANY if count > 1 else 1.0
