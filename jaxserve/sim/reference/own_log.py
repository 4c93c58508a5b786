"""The reference simulator on a user's trace, and beside his log where it tells latencies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.fields import MAX_CONTEXT_TOKENS
from jaxserve.sim.machine.acceptance import Drafts, tokens_per_step
from jaxserve.sim.machine.cost_model import CostModel, IterationTimer
from jaxserve.sim.machine.memory import SequenceKv, check_prefix_caching
from jaxserve.sim.machine.tabulated import MOST_ROWS, MOST_TOKENS, TabulatedTimer
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import (
    Knobs,
    ReferenceSettings,
    Routing,
    SchedulerSettings,
    ShiftedExponentialFrontEnd,
)
from jaxserve.sim.reference.simulator import ReferenceSimulator
from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.traffic.request_logs import RequestLog
from jaxserve.sim.traffic.traces import Trace

Array = NDArray[np.float64]

MAX_ENGINES = 64
MAX_REQUESTS = 1_000_000
"""Most requests of a log or a trace that ``jaxserve simulate`` plays."""
_COMPILED = 300
"""Requests of the longest trace that is served before compiled code is loaded."""
_FILLS = 4
"""Tokens of the requests that fill prefix caches, as a multiple of what these hold: shared prefixes
are held once."""
_FIRST_WAIT_S = 60.0
_FEWEST_READY = 8
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
    concurrency: int | None = None
    """requests in flight at most: each begins when another has ended, whenever it came in the
    trace; None where requests come as the trace says."""
    context_tokens: int | None = None
    """context length of the model: longer requests, prompt and output together, are rejected; None
    where it is not known."""
    drafts: Drafts | None = None
    """speculation; None without."""
    prefill_gpus: int = 0
    """engines that only prefill, the others then only decode; 0 where every engine does both."""
    handover_s_per_token: float = 0.0
    """seconds that the KV of a token takes from a prefilling engine to a decoding one."""
    routing: Routing = Routing.LEAST_LOADED
    """engine of the next request."""
    sequence_kv: SequenceKv | None = None
    """KV that a sequence holds beside that of its tokens; None for layers of one kind."""

    def __post_init__(self) -> None:
        checks.whole("kv_tokens", self.kv_tokens, 1, 1e9)
        check_prefix_caching(self.prefix_caching, self.sequence_kv)
        checks.whole("gpus", self.gpus, 1, MAX_ENGINES)
        checks.whole("batch_cap", self.batch_cap, 1, 65_536)
        checks.whole("token_budget", self.token_budget, 1, 1e6)
        checks.number("frontend_s", self.frontend_s, 0, 3600)
        if self.concurrency is not None:
            checks.whole("concurrency", self.concurrency, 1, 65_536)
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


def simulate(
    trace: Trace, timer: IterationTimer, by: ServedBy, before: Trace | None = None
) -> np.ndarray:
    """Serves a trace to its end, by compiled code where it can.

    Args:
      trace: requests; none is turned away but those that are too long for the KV pool or the model.
      timer: times of iterations, such as a ``CostModel``.
      by: the engines.
      before: requests that the engines served before; prefix caches hold the last of them.

    Returns:
      ``LOG_DTYPE`` rows in the order of the trace.
    """
    if isinstance(timer, CostModel):
        timer = TabulatedTimer(timer, by.tier)
    if len(trace) > _COMPILED and isinstance(timer, TabulatedTimer) and _plain(trace, timer, by):
        log = _compiled(trace, timer, by)
        # A preempted sequence finds its own blocks in a prefix cache, which compiled code lacks.
        if not (by.prefix_caching and log["preemptions"].any()):
            return log
    drafts = by.drafts
    acceptance = None if drafts is None else [tokens_per_step(drafts.profile)]
    requests = trace_requests(trace, acceptance=acceptance)
    if by.concurrency is not None:
        for request in requests:
            request.arrival_s = 0.0
    deepest = 0 if drafts is None else drafts.deepest
    knobs = Knobs(by.batch_cap, by.kv_tokens, deepest, by.tier, prefill_gpus=by.prefill_gpus)
    simulator = ReferenceSimulator(
        ReferenceSettings(
            num_gpus=by.gpus,
            queue_capacity=len(requests),
            context_tokens=by.context_tokens,
            concurrency=by.concurrency,
            kv_bytes_per_token=by.handover_s_per_token,
            link_bytes_per_s=1.0,
            front_end=ShiftedExponentialFrontEnd(by.frontend_s),
            routing=by.routing,
            scheduler=SchedulerSettings(
                token_budget=by.token_budget,
                prefix_caching=by.prefix_caching,
                depths=() if drafts is None else drafts.depths,
                sequence_kv=by.sequence_kv,
            ),
        ),
        timer,
        knobs,
        requests,
        served=[] if before is None else _remembered(before, by, len(requests)),
    )
    wait_s = _FIRST_WAIT_S
    simulator.advance(trace.duration_s, knobs)
    while not all(each.rejected or each.lost or each.finish_s > 0 for each in requests):
        simulator.advance(simulator.now_s + wait_s, knobs)
        wait_s *= 2
    log = simulator.log()
    return log[np.argsort(log["id"])]


def _plain(trace: Trace, timer: TabulatedTimer, by: ServedBy) -> bool:
    """Whether compiled code can stand for the deployment."""
    return (
        timer.one_kind
        and timer.tier == by.tier
        and by.token_budget <= MOST_TOKENS
        and by.batch_cap <= MOST_ROWS
        and by.routing is Routing.LEAST_LOADED
        and by.drafts is None
        and by.sequence_kv is None
        and not by.prefill_gpus
        and not (by.prefix_caching and trace.blocks is not None)
    )


def _compiled(trace: Trace, timer: TabulatedTimer, by: ServedBy) -> np.ndarray:
    # Numba takes half a second to import.
    from jaxserve.sim.reference import compiled, compiled_columns

    size = SchedulerSettings.block_tokens
    return compiled.serve(
        trace,
        timer.times,
        by.gpus,
        compiled_columns.EngineLimits(by.batch_cap, by.token_budget, by.kv_tokens // size, size),
        tier=by.tier,
        frontend_s=by.frontend_s,
        context_tokens=by.context_tokens,
        concurrency=by.concurrency,
    )


def _remembered(before: Trace, by: ServedBy, first_id: int) -> list[Request]:
    """The last requests of a trace, as many as fill the KV pools even where most of their blocks
    are shared; none without prefix caching."""
    if not by.prefix_caching:
        return []
    tokens = (before.prompt_tokens.astype(np.int64) + before.output_tokens)[::-1]
    count = int(np.searchsorted(np.cumsum(tokens), _FILLS * by.kv_tokens * by.gpus)) + 1
    served = trace_requests(before.chosen(slice(-count, None)))
    for number, request in enumerate(served, first_id):
        request.id = number
    return served


def quantities(log: RequestLog, simulated: np.ndarray) -> list[Quantity]:
    """Latencies and throughput, as simulated and as measured; latencies of the streamed requests,
    and no measured throughput where some were not streamed."""
    outputs = log.trace.output_tokens
    found = []
    for label, name, measured_s in (
        ("TTFT", "ttft_s", log.ttft_s),
        ("TPOT", "tpot_s", log.tpot_s),
    ):
        several = np.ones(len(outputs), bool) if name == "ttft_s" else outputs > 1
        if log.ttft_s is not None:
            several &= np.isfinite(log.ttft_s)
        for statistic, reduce in _STATISTICS.items():
            found.append(
                Quantity(
                    f"{label} {statistic}, ms",
                    1e3 * _reduced(simulated[name][several], reduce),
                    None if measured_s is None else 1e3 * _reduced(measured_s[several], reduce),
                )
            )
    measured = None
    if log.ttft_s is not None and log.tpot_s is not None and np.isfinite(log.ttft_s).all():
        measured = _tokens_per_s(log.trace.arrival_s, outputs, log.ttft_s, log.tpot_s)
    throughput = _tokens_per_s(
        simulated["arrival_s"], outputs, simulated["ttft_s"], simulated["tpot_s"]
    )
    return [*found, Quantity("output tokens/s", throughput, measured)]


def check_requests(name: str, trace: Trace) -> None:
    """Refuses a trace that would take hours.

    Raises:
      InputError: the trace has more than ``MAX_REQUESTS``.
    """
    if len(trace) > MAX_REQUESTS:
        raise InputError(
            f"{name} has {len(trace):,} requests, and at most {MAX_REQUESTS:,} are simulated "
            "one by one; take a part of them (--for 2h) or a share (--sample 0.1)"
        )


def trace_notes(trace: Trace, context_tokens: int | None) -> list[str]:
    """Sentences on a coarse clock, and on requests beyond the model or the latency tables."""
    notes = [] if trace.tick_note is None else [trace.tick_note]
    if context_tokens is None:
        notes.append(
            "the model's context length is not known, so requests of any length are served"
        )
    beyond, _ = trace.beyond_table
    if beyond and (context_tokens or math.inf) > MAX_CONTEXT_TOKENS:
        notes.append(
            f"{beyond:,} of {len(trace):,} requests are longer, prompt and output "
            f"together, than the {MAX_CONTEXT_TOKENS:,} tokens that latency tables know; the cost "
            "model of the table computes them all the same"
        )
    return notes


def unstreamed_note(log: RequestLog) -> str | None:
    """Sentence on requests without latencies of a log that has others; None without such."""
    unstreamed = 0 if log.ttft_s is None else int(np.isnan(log.ttft_s).sum())
    if not unstreamed:
        return None
    return (
        f"{unstreamed:,} of {len(log.trace):,} requests were not streamed: they are played, and "
        "the latencies are those of the others"
    )


def unserved_note(trace: Trace, simulated: np.ndarray, by: ServedBy) -> str | None:
    """Sentence on requests that are too long to be served; None where all are served.

    Raises:
      InputError: none is served.
    """
    unserved = simulated["rejected"] | simulated["lost"]
    if not unserved.any():
        return None
    limits = f"the KV pool of {by.kv_tokens:,} tokens"
    if by.context_tokens is not None:
        limits += f" or the model's context of {by.context_tokens:,}"
    count = int(unserved.sum())
    if count == len(trace):
        raise InputError(
            f"none of the {count:,} requests can be served: the shortest has "
            f"{trace.total_tokens.min():,} tokens, prompt and output together, more than {limits}"
        )
    return (
        f"{count:,} of {len(trace):,} requests ({count / len(trace):.1%}) are rejected: they have "
        f"more tokens than {limits}; the latencies are those of the others"
    )


def frontend_of(log: RequestLog, simulated: np.ndarray) -> float | None:
    """Delay of the front end that a client's log shows, s.

    The delay is the median of measured less simulated TTFT, at least 0, of the requests that found
    the engine ready: of these the third with the shortest prompts, whose own time is least.

    Args:
      log: measured latencies.
      simulated: ``LOG_DTYPE`` rows of a simulation without a front end.

    Returns:
      None where the log is not a client's, or fewer than ``_FEWEST_READY`` requests tell.
    """
    if log.ttft_s is None or not log.of_client:
        return None
    waited_s = simulated["first_scheduled_s"] - simulated["arrival_s"]
    steps_s = simulated["tpot_s"][simulated["tpot_s"] > 0]
    is_ready = waited_s < (steps_s.mean() if len(steps_s) else 0.0)
    ready = np.flatnonzero(is_ready & np.isfinite(log.ttft_s))
    shortest = ready[np.argsort(simulated["prompt_tokens"][ready], kind="stable")]
    chosen = shortest[: len(ready) // 3]
    if len(chosen) < _FEWEST_READY:
        return None
    return max(0.0, float(np.median((log.ttft_s - simulated["ttft_s"])[chosen])))


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


def _tokens_per_s(
    arrival_s: Array, outputs: NDArray[np.int32], ttft_s: Array, tpot_s: Array
) -> float:
    """Output tokens from the first request to the last token."""
    end_s = arrival_s + ttft_s + np.nan_to_num(tpot_s) * (outputs - 1)
    served = np.isfinite(end_s)
    if not served.any() or end_s[served].max() <= 0:
        return float("nan")
    return float(outputs[served].sum() / end_s[served].max())
