"""The reference engine against a real vLLM server, replayed from its request log.

The run (casys-kaist/LLMServingSim, commit 5daddb2): vLLM 0.19 serving Llama-3.1-8B on one RTX 4090,
300 requests at about 10 per second, far beyond what the GPU sustains, so queueing and preemption
decide everything. Beside the log lies a profile of the kernels, which gives the iteration times.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxserve.errors import InputError
from jaxserve.fidelity.rows import FidelityRow
from jaxserve.fidelity.sources import read_columns
from jaxserve.sim.reference.replay import run_requests
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings

DIRECTORY = "vllm_rtx4090"
TTFT_BAR, TPOT_BAR = 0.05, 0.03
LAYERS = 32
HOST_S = 0.0
"""Seconds per iteration that vLLM 0.19 adds to the profiled kernels, one constant for both runs of
this version: it composes a step while the GPU computes the one before."""
VISIBLE_HOST_S = 5e-4
"""The other value that is shown: what it would be if half a millisecond were not hidden."""


class ProfileTimer:
    """Iteration times interpolated in a kernel profile; an ``IterationTimer``.

    Dense layers are interpolated in tokens, head and sampler in sequences, attention in the four
    axes (chunk, its prefix, decoding sequences, KV of each). Decodes count as equally long, and
    several chunks as one of the same work.
    """

    def __init__(self, directory: Path, layers: int = LAYERS, host_s: float = HOST_S) -> None:
        """
        Args:
          directory: of the profile.
          layers: transformer layers; dense layers run once in each, but for embedding and norms.
          host_s: seconds of an iteration outside its kernels.
        """
        self._layers, self._host_s = layers, host_s
        once = {"embedding": 1, "final_layernorm": 1, "layernorm": 2 * layers}
        dense = _curves(directory / "profile_dense.csv", "tokens")
        self._tokens = dense["qkv_proj"][0]
        self._dense_s = sum(
            once.get(layer, layers) * seconds for layer, (_, seconds) in dense.items()
        )
        head = _curves(directory / "profile_per_sequence.csv", "sequences")
        self._sequences = head["lm_head"][0]
        self._head_s = sum(seconds for _, seconds in head.values())
        self._axes, self._attention_s = _attention_grid(directory / "profile_attention.csv")

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; the profile knows neither speculation nor tiers."""
        tokens = decode_seqs + sum(chunk for chunk, _ in chunks)
        dense_s = np.interp(tokens, self._tokens, self._dense_s)
        head_s = np.interp(decode_seqs + len(chunks), self._sequences, self._head_s)
        chunk = math.sqrt(sum(chunk * chunk for chunk, _ in chunks))
        prefix = sum(chunk * prefix for chunk, prefix in chunks) / chunk if chunks else 0.0
        context = kv_tokens / decode_seqs if decode_seqs else 0.0
        return float(
            self._host_s
            + dense_s
            + head_s
            + self._layers * self.attention_s(chunk, prefix, decode_seqs, context)
        )

    def attention_s(self, *point: float) -> float:
        """Attention of one layer at (chunk, prefix, decoding sequences, KV tokens of each)."""
        corners = [(1.0, self._attention_s)]
        for axis, x in zip(self._axes, point, strict=True):
            low = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
            share = (x - axis[low]) / (axis[low + 1] - axis[low])
            corners = [
                (weight * part, values[low + side])
                for weight, values in corners
                for side, part in ((0, 1 - share), (1, share))
                if part
            ]
        return sum(weight * seconds for weight, seconds in corners)


def _curves(path: Path, size: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per layer: sizes in ascending order, seconds."""
    columns = read_columns(path)
    curves = {}
    for layer in np.unique(columns["layer"]):
        rows = np.flatnonzero(columns["layer"] == layer)
        rows = rows[np.argsort(columns[size][rows])]
        curves[str(layer)] = (columns[size][rows], columns["time_us"][rows] * 1e-6)
    return curves


def _attention_grid(path: Path) -> tuple[list[list[float]], list]:
    """Axes of the attention profile and seconds as nested lists, gaps filled by what they mean.

    Without a chunk the prefix has no meaning, without decodes their KV has none, and a decode's KV
    is never shorter than the profile's shortest.
    """
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    columns = read_columns(path)
    # A second sweep lies between the powers of two, which alone are a complete grid.
    whole = np.all([np.log2(np.maximum(columns[name], 1)) % 1 == 0 for name in names], axis=0)
    columns = {name: columns[name][whole] for name in (*names, "time_us")}
    axes, places = zip(
        *(np.unique(columns[name], return_inverse=True) for name in names), strict=True
    )
    grid = np.full([len(axis) for axis in axes], np.nan)
    grid[places] = columns["time_us"] * 1e-6
    grid[0, :, 0, :] = 0.0
    grid[0, :, 1:, :] = grid[0, :1, 1:, :]
    grid[:, :, 0, :] = grid[:, :, 0, :1]
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    # The widest batch was profiled only without a chunk: a chunk adds what it adds one step below.
    widest_s = grid[1:, :, -2] + grid[:1, :, -1] - grid[:1, :, -2]
    grid[1:, :, -1] = np.where(np.isnan(grid[1:, :, -1]), widest_s, grid[1:, :, -1])
    if np.isnan(grid).any():
        raise InputError(f"attention profile {path} is not a complete grid")
    return [axis.tolist() for axis in axes], grid.tolist()


def served(directory: Path) -> np.ndarray:
    """float64[n, 5] of the real run: arrival, first token, last token (s), prompt, output tokens.

    Arrival is when the engine queued the request: the same clock as the other two.
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
    """as rows name it."""
    quantity: str
    """field of ``LOG_DTYPE``."""
    reduce: Callable[[np.ndarray], np.floating]
    """of all requests."""
    real: np.ndarray
    """float64[n], of each request, s."""
    bar: float
    """largest relative error."""

    @property
    def real_s(self) -> float:
        """Its value."""
        return float(self.reduce(self.real))

    def error(self, replayed: np.ndarray) -> float:
        """Relative error of a replay, rows of ``LOG_DTYPE``."""
        return float(self.reduce(replayed[self.quantity])) / self.real_s - 1


def statistics(real: np.ndarray) -> list[Statistic]:
    """TTFT mean and p99 and TPOT mean of what ``served`` returns."""
    ttft_s, tpot_s = real[:, 1] - real[:, 0], (real[:, 2] - real[:, 1]) / (real[:, 4] - 1)
    return [
        Statistic("TTFT mean", "ttft_s", np.mean, ttft_s, TTFT_BAR),
        Statistic("TTFT p99", "ttft_s", lambda x: np.percentile(x, 99), ttft_s, TTFT_BAR),
        Statistic("TPOT mean", "tpot_s", np.mean, tpot_s, TPOT_BAR),
    ]


def replay(directory: Path, prefix_caching: bool = True, host_s: float = HOST_S) -> np.ndarray:
    """The run on the reference engine; rows of ``LOG_DTYPE`` in the order of the real log."""
    meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    engine, cache = meta["engine_kwargs"], meta["kv_cache"]
    # vLLM keeps one block back as the null block.
    blocks = cache["num_gpu_blocks"] - 1
    return run_requests(
        requests_of(directory),
        ProfileTimer(directory, host_s=host_s),
        GpuKnobs(engine["max_num_seqs"], blocks * cache["block_size"]),
        SchedulerSettings(
            token_budget=engine["max_num_batched_tokens"],
            block_tokens=cache["block_size"],
            prefix_caching=prefix_caching,
        ),
    )


def vllm_fidelity(shared: Path) -> list[FidelityRow]:
    """TTFT mean and p99 and TPOT mean against the real run; empty where it is absent.

    Args:
      shared: what ``sources.shared_data`` returns.
    """
    directory = shared / DIRECTORY
    if not (directory / "requests.jsonl").is_file():
        return []
    real = served(directory)
    ours, forgetful = replay(directory), replay(directory, prefix_caching=False)
    visible = replay(directory, host_s=VISIBLE_HOST_S)
    rows = []
    for each in statistics(real):
        error, without, slower = map(each.error, (ours, forgetful, visible))
        detail = (
            f"{len(real)} requests, real {each.real_s:.4g} s, ours {100 * error:+.1f} %, "
            f"{ours['preemptions'].sum()} preemptions; {100 * without:+.1f} % if preempted "
            "sequences did not find their own KV in the prefix cache; host time "
            f"{1e3 * HOST_S:g} ms"
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
    return rows
