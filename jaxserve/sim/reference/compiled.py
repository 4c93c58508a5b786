"""Plain deployments of the reference simulator as compiled code: the same log in a fraction of the
time.

``serve`` plays ``simulator.py`` for deployments whose knobs stay as they are and whose engines all
do the same: no split, no speculation, no prefix cache, one order. A test compares the logs request
by request. Importing this module takes half a second, and the first call on a machine compiles for
some ten.
"""

from __future__ import annotations

import math

import numpy as np

from jaxserve.sim.machine.tabulated import Times
from jaxserve.sim.reference.compiled_columns import (
    NONE,
    EngineColumns,
    EngineLimits,
    RequestColumns,
    jitted,
    prefill_target,
    push,
    running,
)
from jaxserve.sim.reference.compiled_engine import finish, start
from jaxserve.sim.reference.request import LOG_DTYPE
from jaxserve.sim.traffic.traces import Trace


def serve(
    trace: Trace,
    times: Times,
    engines: int,
    limits: EngineLimits,
    tier: int = 0,
    frontend_s: float = 0.0,
    context_tokens: int | None = None,
    concurrency: int | None = None,
) -> np.ndarray:
    """Serves a trace to its end.

    Args:
      trace: requests.
      times: of iterations, for at most ``tabulated.MOST_TOKENS`` and ``MOST_ROWS``.
      engines: number of engines, of which the least loaded one gets the next request.
      limits: settings of each.
      tier: quantisation tier.
      frontend_s: delay that is part of TTFT, s.
      context_tokens: context length of the model; longer requests are rejected.
      concurrency: requests in flight at most, whenever they came in the trace: the next one arrives
        when the client has the end of another; None where requests come as the trace says.

    Returns:
      ``LOG_DTYPE`` rows in the order of the trace.
    """
    count = len(trace)
    longest = context_tokens or np.iinfo(np.int64).max
    arrival_s = trace.arrival_s.astype(np.float64)
    if concurrency is not None:
        arrival_s[:concurrency], arrival_s[concurrency:] = 0.0, math.inf
    unknown = [np.full(count, math.nan) for _ in range(3)]
    requests = RequestColumns(
        arrival_s,
        trace.prompt_tokens.astype(np.int64),
        trace.output_tokens.astype(np.int64),
        generated=np.zeros(count, np.int64),
        computed=np.zeros(count, np.int64),
        blocks=np.zeros(count, np.int64),
        first_scheduled_s=unknown[0],
        first_token_s=unknown[1],
        finish_s=unknown[2],
        preemptions=np.zeros(count, np.int64),
        rejected=np.zeros(count, bool),
        lost=np.zeros(count, bool),
        behind=np.zeros(count, np.int64),
    )
    names = EngineColumns._fields
    before = names.index("end_s")
    shapes = dict.fromkeys(names[:before], (engines,))
    shapes |= dict.fromkeys(names[before + 1 :], (engines, limits.batch_cap))
    zeros = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    state = EngineColumns(**zeros, end_s=np.full(engines, math.inf))
    arrays = times._replace(linear_s=np.array(times.linear_s), head_s=np.array(times.head_s))
    _advance(state, requests, arrays, limits, longest, concurrency or count, frontend_s)
    log = np.zeros(count, LOG_DTYPE)
    log["id"] = np.arange(count)
    for name in RequestColumns._fields:
        if name in (LOG_DTYPE.names or ()):
            log[name] = getattr(requests, name)
    log["ttft_s"] = requests.first_token_s - requests.arrival_s + frontend_s
    later = np.maximum(requests.output_tokens - 1, 1)
    log["tpot_s"] = (requests.finish_s - requests.first_token_s) / later
    log["tpot_s"][requests.output_tokens == 1] *= 0.0
    log["tier"] = np.where(np.isnan(requests.finish_s), -1, tier)
    return log


@jitted
def _advance(
    state: EngineColumns,
    requests: RequestColumns,
    times: Times,
    limits: EngineLimits,
    longest: int,
    let_in: int,
    frontend_s: float,
) -> None:
    """From event to event, until every request has ended.

    Of a closed loop the arrivals behind the first ``let_in`` are not known: each is ``frontend_s``
    after the end of another request.
    """
    count, engines = len(requests.arrival_s), len(state.used)
    arrived = routed = turned_away = 0
    in_flight, closed = let_in, let_in < count
    while True:
        now = min(state.end_s)
        if arrived < count:
            now = min(now, requests.arrival_s[arrived])
        if now == math.inf:
            return
        while arrived < count and requests.arrival_s[arrived] <= now:
            tokens = requests.prompt_tokens[arrived] + requests.output_tokens[arrived]
            if tokens > longest:
                requests.rejected[arrived] = True
                turned_away += 1
            arrived += 1
        for engine in range(engines):
            if state.end_s[engine] <= now:
                state.end_s[engine] = math.inf
                finish(state, requests, engine, now)
        let_in = _let_in(state, requests, let_in, in_flight + turned_away, now + frontend_s)
        gone = NONE
        while gone != _ended(state):  # a request that fits no engine makes room for another
            gone = _ended(state)
            routed = _route(state, requests, limits, routed, arrived)
            # Until the next arrival decode steps concern their own engine alone.
            undisturbed_s = requests.arrival_s[arrived] if arrived < count else math.inf
            if routed < arrived or (closed and engines > 1):
                undisturbed_s = -math.inf
            for engine in range(engines):
                busy = state.end_s[engine] < math.inf
                if not busy and (state.waiting[engine] or running(state, engine)):
                    start(state, requests, times, limits, engine, now, undisturbed_s)
        let_in = _let_in(state, requests, let_in, in_flight + turned_away, now + frontend_s)


@jitted
def _ended(state: EngineColumns) -> int:
    """Requests that have ended on any engine."""
    ended = 0
    for engine in range(len(state.ended)):
        ended += state.ended[engine]
    return ended


@jitted
def _let_in(
    state: EngineColumns, requests: RequestColumns, let_in: int, beside: int, arrival_s: float
) -> int:
    """Lets as many requests in as have ended; how many have been let in, ``beside`` of which no
    engine has ended."""
    while let_in < min(_ended(state) + beside, len(requests.arrival_s)):
        requests.arrival_s[let_in] = arrival_s
        let_in += 1
    return let_in


@jitted
def _route(
    state: EngineColumns, requests: RequestColumns, limits: EngineLimits, routed: int, arrived: int
) -> int:
    """Hands requests to the least loaded engine of those that have room; how many were handed."""
    while routed < arrived:
        if requests.rejected[routed]:
            routed += 1
            continue
        chosen, least = NONE, 0
        for engine in range(len(state.used)):
            full = running(state, engine) + state.waiting[engine] >= limits.batch_cap
            if full or state.waiting_tokens[engine] >= limits.token_budget:
                continue
            load = state.kv_tokens[engine] + state.waiting_tokens[engine]
            for place in range(state.prefilling[engine]):
                load += prefill_target(requests, state.prompt[engine, place])
            if chosen == NONE or load < least:
                chosen, least = engine, load
        if chosen == NONE:
            return routed
        push(state, requests, chosen, routed)
        routed += 1
    return routed
