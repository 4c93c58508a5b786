"""The cost model against measured servers whose prompts and decoding have GPUs of their own.

A closed loop keeps C requests in flight. N of them decode on D engines, the others are prefilled by
P engines, wait for that, or are handed over:

    X    = N / (output TPOT(N / D)) <= P b / t(prefill of b prompts)      throughput
    C    = N + X TTFT                                                    Little's law
    TTFT = hand-off + KV bytes / rate + t(prefill of a prompt) + wait(X)

No prompt shares an iteration with decoding, so TPOT is that of decoding alone. N is the largest
number that both allow: where prefill or the decoding engines' limits bound the throughput, the rest
waits. Below that the wait is that of a queue with P servers and constant service (Sakasegawa, An
approximation formula Lq = a b^c / (1 - b), 1977). The measuring client sends C requests at once
and then nine times as many one by one, so a tenth of the requests find the queue of a burst.

Three numbers of each engine are fitted to two thirds of the rows and judged on the third, see
``Apart``. All else is what the shipped constants say, which no row of this kind was fitted to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_bytes_per_token
from jaxserve.studies.fidelity.disaggregated_rows import (
    DisaggregatedRow,
    RoleWorkers,
    disaggregated_rows,
)
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.served_fit import WEAK, kv_pool_tokens
from jaxserve.studies.fidelity.served_loop import TOKEN_BUDGET, shipped_accepted
from jaxserve.studies.fidelity.served_rows import FILE, FOLDS

NETWORK_BYTES_PER_S = 50e9
"""Rate at which a GPU sends KV to another node: one 400 Gb/s adapter for each, as in HGX boards."""
BURST_SHARE = 0.1
"""Share of the requests that a run sends at once: ``num_prompts`` is ten times the concurrency in
the benchmark of NVIDIA/srt-slurm (bench.sh)."""
TPOT_BAR, TTFT_BAR = 12.0, 30.0
_BISECTIONS = 40
_NOISE = 0.1  # relative error of a row from which on it counts less than squared


class Apart(NamedTuple):
    """Times of an engine beyond its shipped constants where prompts have GPUs of their own."""

    handoff_s: float = 0.2
    """seconds between the engines of a request: router, transfer set-up, front end."""
    prefill: float = 1.0
    """factor on the time of a prefill: experts that tokens choose more often hold up the others,
    and prompts do not fill every batch."""
    launches: float = 1.0
    """factor on what the engine adds to the kernels of a decode step, which is one recorded graph
    here and shares its host with prompts elsewhere."""


class LoopTimes(NamedTuple):
    """Mean times of a loop, s."""

    ttft_s: float
    """time to first token."""
    tpot_s: float
    """time per output token."""


class DisaggregatedLoop:
    """The closed loop of a row, without its measured times."""

    def __init__(self, row: DisaggregatedRow) -> None:
        """Computes what does not depend on ``Apart``."""
        self._row = row
        prompt, output = row.mean_prompt, row.mean_output
        gpu, model = row.served(row.prefill)
        cost = CostModel.of(gpu, model, row.prefill.gpus)
        together = row.prefill.ranks * max(1.0, TOKEN_BUDGET // prompt)
        full_s = _prefill_s(cost, row.prefill, prompt, together)
        self.prefill_per_s = row.prefill.count * together / full_s
        self.own_s = _prefill_s(cost, row.prefill, prompt, 1.0)
        near = row.prefill.count * row.prefill.gpus + row.decode.count * row.decode.gpus
        rate = gpu.link_bytes_per_s if near <= gpu.link_gpus else NETWORK_BYTES_PER_S
        senders = row.prefill.gpus // row.prefill.ranks
        bytes_per_gpu = prompt * kv_bytes_per_token(model, row.drafts > 0, senders)
        # GPUs that all hold the same compressed vectors send a share each.
        copies = senders if model.latent is not None else 1
        self.transfer_s = bytes_per_gpu / copies / rate
        gpu, model = row.served(row.decode)
        self._cost = CostModel.of(gpu, model, row.decode.gpus)
        pool = kv_pool_tokens(gpu, model, row.decode.gpus) / (prompt + output / 2)
        self._most = min(row.concurrency, row.decode.count * min(row.decode.most, max(pool, 1.0)))
        self._tokens = float(shipped_accepted().tokens_per_step(row.output, row.drafts))

    def tpot_s(self, decoding: float, launches: float = 1.0) -> float:
        """Seconds per output token where ``decoding`` requests decode."""
        row, cost = self._row, self._cost
        each = max(decoding / row.decode.count, 1.0)
        context = row.mean_prompt + row.mean_output / 2
        launched_s = cost.host_s + (cost.beyond.expert_constant_s if cost.beyond else 0.0)
        step_s = float(cost.decode_s(each, context, row.drafts)) + (launches - 1) * launched_s
        return step_s / self._tokens

    def times(self, apart: Apart) -> LoopTimes:
        """Mean times with these numbers of the engine."""
        row, most_per_s = self._row, self.prefill_per_s / apart.prefill
        base_s = apart.handoff_s + self.transfer_s + apart.prefill * self.own_s
        low, high = 0.0, self._most
        for _ in range(_BISECTIONS):
            decoding = (low + high) / 2
            rate = decoding / (row.mean_output * self.tpot_s(decoding, apart.launches))
            waiting = rate * (base_s + _wait_s(rate, most_per_s, row.prefill.count))
            if rate < most_per_s and decoding + waiting < row.concurrency:
                low = decoding
            else:
                high = decoding
        tpot_s = self.tpot_s(low, apart.launches)
        steady_s = max((row.concurrency - low) * row.mean_output * tpot_s / low, base_s)
        burst_s = base_s + row.concurrency / (2 * most_per_s)
        return LoopTimes(steady_s + BURST_SHARE * (burst_s - steady_s), tpot_s)


def _wait_s(rate: float, most_per_s: float, servers: int) -> float:
    load = min(rate / most_per_s, 1 - 1e-9)
    crowd = load ** (math.sqrt(2 * (servers + 1)) - 1)
    return crowd / (2 * most_per_s * (1 - load))


def _prefill_s(cost: CostModel, workers: RoleWorkers, prompt: float, prompts: float) -> float:
    """Seconds of an iteration that prefills ``prompts`` whole prompts. Where each GPU attends for
    prompts of its own, the fullest ends what is outside of the experts."""
    full = math.ceil(prompts / workers.ranks) * workers.ranks
    beyond, tokens = cost.beyond, full * prompt
    body_s = cost.linear_s(tokens)
    if beyond is not None:
        body_s = body_s - beyond.linear_s(tokens, 0) + beyond.linear_s(prompts * prompt, 0)
    attention_s = full * cost.prefill_attention_s(prompt, 0)
    fixed_s = cost.host_s + cost.layers * cost.prefill_constant_s
    total_s = float(fixed_s + body_s + cost.head_s(prompts) + attention_s)
    return max(total_s, beyond.eager_s) if beyond is not None else total_s


def fitted_apart(rows: Sequence[DisaggregatedRow], loops: Sequence[DisaggregatedLoop]) -> Apart:
    """The numbers of an engine, by robust least squares of log(predicted / measured)."""
    measured = np.log([(row.ttft_s, row.tpot_s) for row in rows])

    def residuals(logs: np.ndarray) -> np.ndarray:
        apart = Apart(*np.exp(logs).tolist())
        off = np.log([loop.times(apart) for loop in loops]) - measured
        return np.concatenate([off.ravel(), WEAK * (logs - start)])

    start = np.log(Apart())
    found = least_squares(residuals, start, loss="soft_l1", f_scale=_NOISE, max_nfev=12)
    return Apart(*np.exp(found.x).tolist())


def held_out_times(rows: Sequence[DisaggregatedRow]) -> list[LoopTimes]:
    """Times of each row under the numbers of its engine, fitted without its third."""
    loops = [DisaggregatedLoop(row) for row in rows]
    parts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        parts[row.stack.engine, row.fold].append(place)
    found: dict[int, LoopTimes] = {}
    for (engine, fold), places in parts.items():
        others = [i for part in range(FOLDS) if part != fold for i in parts.get((engine, part), ())]
        inside = [rows[i] for i in others], [loops[i] for i in others]
        apart = fitted_apart(*inside) if others else Apart()
        found |= {i: loops[i].times(apart) for i in places}
    return [found[i] for i in range(len(rows))]


def disaggregated_fidelity(directory: Path) -> list[FidelityRow]:
    """Rows on TPOT and TTFT of these servers; none if the file is absent."""
    if not (directory / FILE).is_file():
        return []
    rows, left_out = disaggregated_rows(directory)
    if not rows:
        return []
    times = held_out_times(rows)
    tpot = np.array([t.tpot_s / row.tpot_s - 1 for t, row in zip(times, rows, strict=True)])
    ttft = np.array([t.ttft_s / row.ttft_s - 1 for t, row in zip(times, rows, strict=True)])
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[f"{row.stack.engine} {'with' if row.drafts else 'without'} drafts"].append(place)
    split = ", ".join(
        f"{name} {len(own)} rows, TPOT {100 * np.abs(tpot[own]).mean():.1f} %, TTFT "
        f"{100 * np.median(np.abs(ttft[own])):.1f} %"
        for name, own in sorted(groups.items())
    )
    about = f"{len(rows)} rows, held out by thirds; {split}"
    counts = ", ".join(f"{n} {rule}" for rule, n in sorted(left_out.items()))
    return [
        FidelityRow.within(
            "cost model vs servers apart: TPOT",
            100 * float(np.abs(tpot).mean()),
            TPOT_BAR,
            "% (mean)",
            f"{about}; median {100 * np.median(np.abs(tpot)):.1f} %, bias "
            f"{100 * tpot.mean():+.1f} %; of the file's rows left out: {counts}",
        ),
        FidelityRow.within(
            "cost model vs servers apart: TTFT",
            100 * float(np.median(np.abs(ttft))),
            TTFT_BAR,
            "% (median)",
            f"the same rows; mean {100 * np.abs(ttft).mean():.1f} %, bias of the median "
            f"{100 * np.median(ttft):+.1f} %",
        ),
    ]
