"""The reference simulator on a user's trace, and beside his log where it tells latencies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import MAX_CONTEXT_TOKENS
from jaxserve.sim.machine.acceptance import Drafts, tokens_per_step
from jaxserve.sim.machine.cost_model import IterationTimer
from jaxserve.sim.machine.memory import kv_capacity_tokens
from jaxserve.sim.machine.stack import serve
from jaxserve.sim.reference.settings import (
    Knobs,
    ReferenceSettings,
    SchedulerSettings,
    ShiftedExponentialFrontEnd,
)
from jaxserve.sim.reference.simulator import ReferenceSimulator
from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import TableMetadata, read_table_file
from jaxserve.sim.traffic.request_logs import RequestLog
from jaxserve.sim.traffic.traces import Trace

Array = NDArray[np.float64]

MAX_ENGINES = 64
_FIRST_WAIT_S = 60.0
_OTHER_UNIT = 100.0
"""Factor between measured and simulated times that no engine explains, but a unit does."""


@dataclass(frozen=True)
class ServedBy:
    """Settings of the engines that served a log."""

    kv_tokens: int
    """KV tokens that one engine has room for."""
    gpus: int = 1
    """engines behind one router; a tensor-parallel group counts as one."""
    batch_cap: int = 256
    """sequences that one runs at once (vLLM's ``max_num_seqs``)."""
    token_budget: int = SchedulerSettings.token_budget
    """tokens of an iteration (vLLM's ``max_num_batched_tokens``)."""
    tier: int = 0
    """quantisation tier of the weights."""
    prefix_caching: bool = False
    """whether prompts that begin alike share their prefix in the KV pool; a trace without
    ``hash_ids`` has no such prompts."""
    frontend_s: float = 0.0
    """delay between client and engine, part of TTFT, s."""
    drafts: Drafts | None = None
    """speculation; None without."""
    prefill_gpus: int = 0
    """engines that only prefill, the others then only decode; 0 where every engine does both."""
    handover_s_per_token: float = 0.0
    """seconds that the KV of a token takes from a prefilling engine to a decoding one."""

    def __post_init__(self) -> None:
        checks.whole("kv_tokens", self.kv_tokens, 1, 1e9)
        checks.whole("gpus", self.gpus, 1, MAX_ENGINES)
        checks.whole("batch_cap", self.batch_cap, 1, 65_536)
        checks.whole("token_budget", self.token_budget, 1, 1e6)
        checks.number("frontend_s", self.frontend_s, 0, 3600)
        checks.number("handover_s_per_token", self.handover_s_per_token, 0, 1)


@dataclass(frozen=True)
class Quantity:
    """A figure of a log."""

    name: str
    """figure, with its unit."""
    simulated: float
    """value in the reference simulator; NaN where nothing was served."""
    measured: float | None = None
    """value in the log; None where the log lacks it."""

    @property
    def error(self) -> float | None:
        """Relative error of the simulator, with its sign."""
        return None if not self.measured else self.simulated / self.measured - 1


@dataclass(frozen=True)
class OwnEngine:
    """Constants of the engine behind a log."""

    metadata: TableMetadata
    """cost model, token budget and extent of its latency table."""
    hardware: str
    """name or file of the GPU, which may be known to the latency table alone."""
    model: str
    """name or file of the model, likewise."""

    def kv_tokens(self, tier: int) -> int:
        """Capacity of the KV pool: tokens that fit beside the weights of a tier.

        Raises:
          InputError: GPU or model is unknown.
        """
        served = serve(self.hardware, self.model, self.metadata.stack)
        group = self.metadata.tensor_parallel
        return int(kv_capacity_tokens(*served, tier, 1.0, False, group))


def own_engine(
    table: str | None, hardware: str | None, model: str | None, tensor_parallel: int
) -> OwnEngine:
    """The engine of a latency table, or of a model on a GPU.

    Args:
      table: name or path of a table.
      hardware: name or file of a GPU; with a table, in place of the table's GPU.
      model: name or file of a model, likewise.
      tensor_parallel: GPUs that share every layer, without a table.

    Raises:
      InputError: the arguments do not go together, or one of them is unknown.
    """
    if table is not None:
        if tensor_parallel != 1:
            raise InputError("--tensor-parallel goes with --hardware; a --table has its own")
        metadata = read_table_file(table).metadata
    elif hardware is not None and model is not None:
        metadata = build(hardware, model, tensor_parallel=tensor_parallel).metadata
    else:
        raise InputError("name either --table, or --hardware and --model")
    return OwnEngine(metadata, hardware or metadata.hardware, model or metadata.model)


def simulate(trace: Trace, timer: IterationTimer, by: ServedBy) -> np.ndarray:
    """Serves a trace to its end.

    Args:
      trace: requests; none is turned away but those that no engine has room for.
      timer: times of iterations, such as a ``CostModel``.
      by: the engines.

    Returns:
      ``LOG_DTYPE`` rows in the order of the trace.
    """
    drafts = by.drafts
    acceptance = None if drafts is None else [tokens_per_step(drafts.profile)]
    requests = trace_requests(trace, acceptance=acceptance)
    deepest = 0 if drafts is None else drafts.deepest
    knobs = Knobs(by.batch_cap, by.kv_tokens, deepest, by.tier, prefill_gpus=by.prefill_gpus)
    simulator = ReferenceSimulator(
        ReferenceSettings(
            num_gpus=by.gpus,
            queue_capacity=len(requests),
            kv_bytes_per_token=by.handover_s_per_token,
            link_bytes_per_s=1.0,
            front_end=ShiftedExponentialFrontEnd(by.frontend_s),
            scheduler=SchedulerSettings(
                token_budget=by.token_budget,
                prefix_caching=by.prefix_caching,
                depths=() if drafts is None else drafts.depths,
            ),
        ),
        timer,
        knobs,
        requests,
    )
    wait_s = _FIRST_WAIT_S
    simulator.advance(trace.duration_s, knobs)
    while not all(each.rejected or each.lost or each.finish_s > 0 for each in requests):
        simulator.advance(simulator.now_s + wait_s, knobs)
        wait_s *= 2
    log = simulator.log()
    return log[np.argsort(log["id"])]


def quantities(log: RequestLog, simulated: np.ndarray) -> list[Quantity]:
    """Latencies and throughput, as simulated and as measured."""
    outputs = log.trace.output_tokens
    found = []
    for label, name, measured_s in (
        ("TTFT", "ttft_s", log.ttft_s),
        ("TPOT", "tpot_s", log.tpot_s),
    ):
        several = np.ones(len(outputs), bool) if name == "ttft_s" else outputs > 1
        for statistic, reduce in _STATISTICS.items():
            found.append(
                Quantity(
                    f"{label} {statistic}, ms",
                    1e3 * _reduced(simulated[name][several], reduce),
                    None if measured_s is None else 1e3 * _reduced(measured_s[several], reduce),
                )
            )
    measured = None
    if log.ttft_s is not None and log.tpot_s is not None:
        measured = _tokens_per_s(log.trace, log.ttft_s, log.tpot_s)
    throughput = _tokens_per_s(log.trace, simulated["ttft_s"], simulated["tpot_s"])
    return [*found, Quantity("output tokens/s", throughput, measured)]


def trace_notes(trace: Trace) -> list[str]:
    """Sentences on a coarse clock and on requests beyond the latency tables."""
    notes = [] if trace.tick_note is None else [trace.tick_note]
    beyond, _ = trace.beyond_table
    if beyond:
        notes.append(
            f"{beyond:,} of {len(trace):,} requests are longer, prompt and output "
            f"together, than the {MAX_CONTEXT_TOKENS:,} tokens that latency tables know; the cost "
            "model of the table computes them all the same"
        )
    return notes


def reuse_note(trace: Trace, simulated: np.ndarray, prefix_caching: bool) -> str | None:
    """Sentence on prompts found in the prefix cache; None if there is nothing to tell."""
    if trace.repeated_share is not None:
        found = simulated["cached_tokens"].sum() / simulated["prompt_tokens"].sum()
        return (
            f"{trace.repeated_share:.1%} of the prompt tokens are in blocks that the "
            f"trace had before; {found:.1%} were found cached"
        )
    if prefix_caching:
        return "the trace has no hash_ids: no prompt is known to begin like another"
    return None


def check_unit(found: list[Quantity]) -> None:
    """Refuses a log whose measured times can only be of another unit than seconds.

    Raises:
      InputError: the median time per token is ``_OTHER_UNIT`` times longer or shorter than the
        simulated one; a queue lengthens the time to first token, but hardly the time per token.
    """
    tpot = next(each for each in found if each.name.startswith("TPOT p50"))
    if not tpot.measured or not tpot.simulated > 0.0:
        return
    ratio = tpot.measured / tpot.simulated
    if not 1.0 / _OTHER_UNIT < ratio < _OTHER_UNIT:
        raise InputError(
            f"the log's median time per token, {tpot.measured:,.3g} ms when its times are read as "
            f"seconds, is {ratio:,.3g} times what is simulated, {tpot.simulated:,.3g} ms; name the "
            "unit (--time-unit ms), or another GPU and model"
        )


_STATISTICS: dict[str, Callable[[Array], float]] = {
    "mean": lambda values: float(values.mean()),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p99": lambda values: float(np.percentile(values, 99)),
}


def _reduced(values: Array, reduce: Callable[[Array], float]) -> float:
    known = values[np.isfinite(values)]
    return reduce(known) if len(known) else float("nan")


def _tokens_per_s(trace: Trace, ttft_s: Array, tpot_s: Array) -> float:
    """Output tokens from the first request to the last token."""
    decode_s = np.nan_to_num(tpot_s) * (trace.output_tokens - 1)
    end_s = trace.arrival_s + ttft_s + decode_s
    served = np.isfinite(end_s)
    if not served.any() or end_s[served].max() <= 0:
        return float("nan")
    return float(trace.output_tokens[served].sum() / end_s[served].max())
