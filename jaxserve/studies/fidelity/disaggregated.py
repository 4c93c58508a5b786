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

The hand-off, seconds between engines that no kernel shows (router, transfer set-up, front end), is
one number of each engine, fitted to two thirds of the rows and judged on the third. All else is
what the shipped constants say, which no row of this kind was fitted to.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from scipy.optimize import OptimizeResult, minimize_scalar

from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_bytes_per_token
from jaxserve.studies.fidelity.disaggregated_rows import (
    DisaggregatedRow,
    RoleWorkers,
    disaggregated_rows,
)
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.served_fit import kv_pool_tokens
from jaxserve.studies.fidelity.served_loop import TOKEN_BUDGET, shipped_accepted
from jaxserve.studies.fidelity.served_rows import FILE, FOLDS

NETWORK_BYTES_PER_S = 50e9
"""Rate at which a GPU sends KV to another node: one 400 Gb/s adapter for each, as in HGX boards."""
BURST_SHARE = 0.1
"""Share of the requests that a run sends at once: ``num_prompts`` is ten times the concurrency in
the benchmark of NVIDIA/srt-slurm (bench.sh)."""
TPOT_BAR, TTFT_BAR = 12.0, 30.0
_LONGEST_HANDOFF_S = 2.0
_BISECTIONS = 50


class LoopTimes(NamedTuple):
    """Mean times of a loop, s."""

    ttft_s: float
    """time to first token."""
    tpot_s: float
    """time per output token."""


class DisaggregatedLoop:
    """The closed loop of a row, without its measured times."""

    def __init__(self, row: DisaggregatedRow) -> None:
        """Computes what does not depend on the hand-off."""
        self._row = row
        prompt, output = row.mean_prompt, row.mean_output
        gpu, model = row.served(row.prefill)
        cost = CostModel.of(gpu, model, row.prefill.gpus)
        together = row.prefill.ranks * max(1.0, TOKEN_BUDGET // prompt)
        self.prefill_per_s = row.prefill.count * together / _prefill_s(
            cost, row.prefill, prompt, together
        )
        self.own_s = _prefill_s(cost, row.prefill, prompt, 1.0)
        near = row.prefill.count * row.prefill.gpus + row.decode.count * row.decode.gpus
        rate = gpu.link_bytes_per_s if near <= gpu.link_gpus else NETWORK_BYTES_PER_S
        senders = row.prefill.gpus // row.prefill.ranks
        bytes_per_gpu = prompt * kv_bytes_per_token(model, row.drafts > 0, senders)
        # GPUs that all hold the same compressed vectors send a share each.
        copies = senders if model.latent is not None else 1
        self.own_s += bytes_per_gpu / copies / rate
        gpu, model = row.served(row.decode)
        self._cost = CostModel.of(gpu, model, row.decode.gpus)
        pool = kv_pool_tokens(gpu, model, row.decode.gpus) / (prompt + output / 2)
        self._most = min(row.concurrency, row.decode.count * min(row.decode.most, max(pool, 1.0)))
        self._tokens = float(shipped_accepted().tokens_per_step(row.output, row.drafts))

    def tpot_s(self, decoding: float) -> float:
        """Seconds per output token where ``decoding`` requests decode."""
        row = self._row
        each = max(decoding / row.decode.count, 1.0)
        context = row.mean_prompt + row.mean_output / 2
        return float(self._cost.decode_s(each, context, row.drafts)) / self._tokens

    def times(self, handoff_s: float) -> LoopTimes:
        """Mean times with this hand-off."""
        row, base_s = self._row, self.own_s + handoff_s
        low, high = 0.0, self._most
        for _ in range(_BISECTIONS):
            decoding = (low + high) / 2
            rate = decoding / (row.mean_output * self.tpot_s(decoding))
            waiting = rate * (base_s + self._wait_s(rate))
            if rate < self.prefill_per_s and decoding + waiting < row.concurrency:
                low = decoding
            else:
                high = decoding
        rate = low / (row.mean_output * self.tpot_s(low))
        steady_s = max((row.concurrency - low) / rate, base_s)
        burst_s = base_s + row.concurrency / (2 * self.prefill_per_s)
        return LoopTimes(steady_s + BURST_SHARE * (burst_s - steady_s), self.tpot_s(low))

    def _wait_s(self, rate: float) -> float:
        servers, load = self._row.prefill.count, min(rate / self.prefill_per_s, 1 - 1e-9)
        each_s = servers / self.prefill_per_s
        crowd = load ** (math.sqrt(2 * (servers + 1)) - 1)
        return each_s * crowd / (2 * servers * (1 - load))


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


def fitted_handoff_s(rows: Sequence[DisaggregatedRow], loops: Sequence[DisaggregatedLoop]) -> float:
    """The hand-off with the least mean error of log TTFT."""
    measured_s = np.array([row.ttft_s for row in rows])

    def loss(handoff_s: float) -> float:
        predicted_s = np.array([loop.times(handoff_s).ttft_s for loop in loops])
        return float(np.abs(np.log(predicted_s / measured_s)).mean())

    bounds = (0.0, _LONGEST_HANDOFF_S)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 5e-3})
    return float(cast(OptimizeResult, found).x)


def held_out_times(rows: Sequence[DisaggregatedRow]) -> list[LoopTimes]:
    """Times of each row under the hand-off of its engine, fitted without its third."""
    loops = [DisaggregatedLoop(row) for row in rows]
    parts: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        parts[row.stack.engine, row.fold].append(place)
    found: dict[int, LoopTimes] = {}
    for (engine, fold), places in parts.items():
        others = [i for part in range(FOLDS) if part != fold for i in parts.get((engine, part), ())]
        inside = [rows[i] for i in others], [loops[i] for i in others]
        handoff_s = fitted_handoff_s(*inside) if others else 0.0
        found |= {i: loops[i].times(handoff_s) for i in places}
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
    about = f"{len(rows)} rows, hand-offs held out by thirds; {split}"
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
