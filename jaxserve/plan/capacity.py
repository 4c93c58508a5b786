"""Capacity of an engine in closed form: the rate that it sustains inside the objectives.

The closed loop that fills latency tables says, for a number of requests in flight, how many it
completes and how long their tokens take. The largest rate whose TPOT and TTFT are inside the
objectives bounds the replicas that a deployment needs, before any request is played.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxserve.plan.doubt import most_expected
from jaxserve.plan.inputs import PlanInputs, PlanObjective
from jaxserve.plan.options import LARGEST_CAP, EngineOption
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.sim.table.closed_loop import ClosedLoop, closed_loop
from jaxserve.sim.traffic.traces import Trace

BATCH_CAPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, LARGEST_CAP)
"""Batch caps to choose from (vLLM's ``max_num_seqs``)."""
TOKEN_BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
"""Token budgets to choose from (vLLM's ``max_num_batched_tokens``)."""
DEFAULT_CAP, DEFAULT_BUDGET = 256, 2048
"""The simulated engine's own batch cap and token budget."""
SPLIT_BUDGET = 8192
"""Token budget where replicas only prefill or only decode: long chunks delay nobody's tokens."""
WINDOW_S = 60.0
"""Length of the windows over which rates are counted, s."""
_IN_FLIGHT = np.unique(np.round(np.geomspace(1, BATCH_CAPS[-1], 60)))


@dataclass(frozen=True)
class Limits:
    """Batch cap and token budget of an engine, and the rate that they sustain."""

    batch_cap: int
    """sequences that run at once."""
    token_budget: int
    """tokens of an iteration."""
    requests_per_s: float
    """rate inside the objectives, in closed form; 0 where no rate is."""
    in_flight: float
    """requests in flight at that rate."""
    prefill_share: float = 0.0
    """share of the replicas that only prefill while the others decode, at which both are as busy;
    0 where every replica does both."""

    def prefill_replicas(self, replicas: int) -> int:
        """Replicas that only prefill, of at least two."""
        if not self.prefill_share:
            return 0
        return min(max(round(self.prefill_share * replicas), 1), replicas - 1)


def best_limits(option: EngineOption, inputs: PlanInputs) -> list[Limits]:
    """Limits of an engine, the most promising first.

    For each token budget, the batch cap below the requests in flight that are expected to complete
    most inside the objective on TPOT, the next larger one and the engine's own.
    """
    found: list[Limits] = []
    for budget in TOKEN_BUDGETS:
        pool = option.kv_tokens(BATCH_CAPS[-1], budget)
        if not option.holds(inputs.model_length, pool):
            continue
        loop, _ = _steady(option, inputs, _IN_FLIGHT, budget)
        inside = loop.tpot_s <= inputs.objective.tpot_s
        inside &= loop.ttft_p50_s <= inputs.objective.ttft_s
        rate = np.where(inside, loop.requests_per_s, 0.0)
        chosen = most_expected(
            loop.requests_per_s, loop.tpot_s, inputs.objective.tpot_s, option.doubt.error
        )
        largest = 1.0 if chosen is None else float(_IN_FLIGHT[chosen])
        below = max(cap for cap in BATCH_CAPS if cap <= largest)
        caps = {below, min(2 * below, BATCH_CAPS[-1]), DEFAULT_CAP}
        for cap in sorted(caps, reverse=True):
            within = np.where(cap >= _IN_FLIGHT, rate, 0.0)
            best = int(within.argmax())
            found.append(Limits(cap, budget, float(within[best]), float(_IN_FLIGHT[best])))
    most = max((each.requests_per_s for each in found), default=0.0)

    def order(each: Limits) -> tuple[bool, int, int]:
        # Limits within 2 % of the largest rate are equal: the engine's own come first.
        equal = each.requests_per_s >= 0.98 * most
        cap_steps = abs(BATCH_CAPS.index(each.batch_cap) - BATCH_CAPS.index(DEFAULT_CAP))
        budget_steps = TOKEN_BUDGETS.index(each.token_budget) - TOKEN_BUDGETS.index(DEFAULT_BUDGET)
        return not equal, abs(budget_steps), cap_steps

    return sorted(found, key=order)


def split_limits(option: EngineOption, inputs: PlanInputs) -> Limits | None:
    """Limits of an engine whose replicas prefill or decode, with the rate for each of all replicas;
    None where one of the two is beyond its objective at any rate.

    Prompts pass one after the other, and a decoding engine runs as many sequences as it has memory
    for and their time per token allows.
    """
    prompt, output = inputs.mean_lengths
    pool = option.kv_tokens(DEFAULT_CAP, SPLIT_BUDGET)
    if not option.holds(inputs.model_length, pool):
        return None
    running = _IN_FLIGHT[_IN_FLIGHT <= DEFAULT_CAP]
    depth, per_step = _drafted(option, running)
    step_s = option.cost.decode_s(running, option.context_tokens, depth, option.tier)
    inside = step_s / per_step <= inputs.objective.tpot_s
    inside &= running <= max(pool / option.context_tokens, 1.0)
    prefill_s = float(option.cost.prefill_alone_s(prompt, option.tier, SPLIT_BUDGET))
    if not inside.any() or prefill_s > inputs.objective.ttft_s:
        return None
    decoded = np.where(inside, running * per_step / ((output - 1) * step_s), 0.0)
    best = int(decoded.argmax())
    decode_s = 1.0 / float(decoded[best])
    share = prefill_s / (prefill_s + decode_s)
    rate = 1.0 / (prefill_s + decode_s)
    return Limits(DEFAULT_CAP, SPLIT_BUDGET, rate, float(running[best]), share)


def rates(trace: Trace, window_s: float = WINDOW_S) -> NDArray[np.float64]:
    """float64[W], requests per second in each window of a trace; the last window is as long as the
    trace leaves it, and part of the one before where that is less than half."""
    duration_s = max(trace.duration_s, 1e-9)
    windows = max(int(duration_s / window_s + 0.5), 1)
    edges = np.append(np.arange(windows) * window_s, duration_s)
    until = np.searchsorted(trace.arrival_s, edges)
    until[-1] = len(trace)  # the last request ends the last window
    return np.diff(until) / np.diff(edges)


def least_replicas(
    trace: Trace, requests_per_s: float, window_s: float = WINDOW_S
) -> NDArray[np.int64]:
    """int64[W], ``ceil(lambda(t) / mu)`` in each window: replicas of a fleet that follows the
    traffic without delay."""
    return np.ceil(rates(trace, window_s) / requests_per_s - 1e-9).astype(np.int64)


@dataclass(frozen=True, eq=False)
class WindowWork:
    """Work that arrives in each window of a trace, in requests of mean lengths."""

    requests: NDArray[np.float64]
    """float64[W], the least of a window's shares of the requests, of the prompt tokens and of the
    output tokens, times all requests: no engine has less to do."""
    length_s: NDArray[np.float64]
    """float64[W], length of each window; the last one lasts until the end of the trace."""

    @classmethod
    def of(cls, trace: Trace) -> WindowWork:
        """The work of a trace."""
        windows = max(int(trace.duration_s / WINDOW_S), 1)
        each = [
            trace.counts(WINDOW_S, windows),
            *(
                trace.sums(values, WINDOW_S, windows) / values.mean()
                for values in (trace.prompt_tokens, trace.output_tokens)
            ),
        ]
        length_s = np.full(windows, WINDOW_S)
        length_s[-1] = max(trace.duration_s - (windows - 1) * WINDOW_S, WINDOW_S)
        return cls(np.min(each, axis=0), length_s)


def fewest_replicas(
    work: WindowWork, objective: PlanObjective, requests_per_s: float, running: int, most: int
) -> int:
    """Replicas below which more requests miss the objectives than may; ``most`` + 1 where so
    many do not suffice.

    Of the work of a window, replicas have completed what their rate allows until the window and
    the objective have passed, and as many requests as fit may be running; the rest misses.

    Args:
      work: work of the traffic.
      objective: the objective.
      requests_per_s: rate of one replica, at most.
      running: requests that run at once on one replica, at most.
      most: replicas that are tried.
    """
    each = requests_per_s * (work.length_s + objective.ttft_s) + running
    allowed = (1.0 - objective.attainment) * float(work.requests.sum())
    for replicas in range(1, most + 1):
        if np.maximum(work.requests - replicas * each, 0.0).sum() <= allowed:
            return replicas
    return most + 1


def usual_in_flight(option: EngineOption, inputs: PlanInputs) -> float:
    """Requests in flight on one engine in the busiest minute, where as many replicas serve as the
    closed form asks for; 1 where no rate is inside the objectives."""
    limits = best_limits(option, inputs)
    if not limits or not limits[0].requests_per_s:
        return 1.0
    peak = float(rates(inputs.trace).max())
    each = peak / np.ceil(peak / limits[0].requests_per_s)
    loop, _ = _steady(option, inputs, _IN_FLIGHT, limits[0].token_budget)
    return float(np.interp(each, np.maximum.accumulate(loop.requests_per_s), _IN_FLIGHT))


def decode_share(option: EngineOption, inputs: PlanInputs, in_flight: float, budget: int) -> float:
    """Share of an average iteration that decoding takes; prefill takes the rest."""
    loop, depth = _steady(option, inputs, max(in_flight, 1.0), budget)
    decode_s = option.cost.decode_s(loop.batch, option.context_tokens, depth, option.tier)
    return float(decode_s / loop.iteration_s)


def _steady(
    option: EngineOption, inputs: PlanInputs, in_flight: ArrayLike, budget: int
) -> tuple[ClosedLoop, NDArray[np.int64]]:
    """Steady state of an engine with the largest batch cap at ``in_flight`` requests, and the depth
    of its drafts there, in the shape of ``in_flight``."""
    prompt, output = inputs.mean_lengths
    pool = max(option.kv_tokens(BATCH_CAPS[-1], budget), 1)
    depth, per_step = _drafted(option, np.minimum(in_flight, pool / option.context_tokens))
    loop = closed_loop(
        option.cost,
        in_flight,
        prompt,
        output,
        depth=depth,
        tier=option.tier,
        tokens_per_step=per_step,
        kv_tokens=pool,
        token_budget=budget,
        sequence_kv=option.sequence_kv,
        in_step=False,
    )
    return loop, depth


def _drafted(
    option: EngineOption, running: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Depth of the drafts of an engine that runs so many sequences, and mean tokens per step."""
    if option.drafts is None:
        return np.zeros(running.shape, np.int64), np.ones(running.shape)
    depth = np.array(option.drafts.depths)[np.maximum(running.astype(np.int64), 1) - 1]
    return depth, tokens_per_step(option.drafts.profile)[depth]
