"""Plain deployments of the reference simulator as compiled code: the same log in a fraction of the
time.

``serve`` plays ``simulator.py`` and ``engine.py`` for deployments whose knobs stay as they are and
whose engines all do the same: no split, no speculation, no prefix cache, one order. Functions have
the names of the methods that they stand for, and a test compares the logs request by request.
Importing this module takes half a second, and the first call on a machine compiles for some ten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from jaxserve.sim.machine import tabulated
from jaxserve.sim.machine.tabulated import Times
from jaxserve.sim.reference.request import LOG_DTYPE
from jaxserve.sim.traffic.traces import Trace

_NONE = -1
fullest_rank = register_jitable(tabulated.fullest_rank)
kernel_s = register_jitable(tabulated.kernel_s)
attention_s = register_jitable(tabulated.attention_s)
iteration_s = register_jitable(tabulated.iteration_s)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function, once for all processes where a folder for it can be written."""
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:
        return numba.njit(function)


class EngineLimits(NamedTuple):
    """Settings of every engine."""

    batch_cap: int
    token_budget: int
    blocks: int
    """KV blocks of an engine."""
    block_tokens: int


class _Requests(NamedTuple):
    """Columns of n requests in order of arrival."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    generated: NDArray[np.int64]
    computed: NDArray[np.int64]
    blocks: NDArray[np.int64]
    """blocks held while it prefills."""
    first_scheduled_s: NDArray[np.float64]
    first_token_s: NDArray[np.float64]
    finish_s: NDArray[np.float64]
    preemptions: NDArray[np.int64]
    rejected: NDArray[np.bool_]
    lost: NDArray[np.bool_]
    behind: NDArray[np.int64]
    """the next one in the queue of its engine."""


class _Engines(NamedTuple):
    """Columns of g engines; a matrix has a row per engine and a column per sequence."""

    used: NDArray[np.int64]
    """KV blocks in use."""
    first: NDArray[np.int64]
    """head of the queue."""
    last: NDArray[np.int64]
    waiting: NDArray[np.int64]
    """requests in the queue."""
    waiting_tokens: NDArray[np.int64]
    """tokens that these have to prefill."""
    prefilling: NDArray[np.int64]
    """requests that prefill."""
    decoding: NDArray[np.int64]
    """sequences that decode."""
    kv_tokens: NDArray[np.int64]
    """KV tokens of these."""
    rows: NDArray[np.int64]
    """decoding sequences in the iteration in flight."""
    chunks: NDArray[np.int64]
    """chunks of prompts in it."""
    ended: NDArray[np.int64]
    """requests that have ended here."""
    end_s: NDArray[np.float64]
    """its end; infinite where there is none."""
    prompt: NDArray[np.int64]
    """int64[g, cap], requests that prefill, in the order of admission."""
    chunk_of: NDArray[np.int64]
    """int64[g, cap], request of each chunk."""
    chunk: NDArray[np.int64]
    """int64[g, cap], its tokens."""
    sequence: NDArray[np.int64]
    """int64[g, cap], requests that decode, in the order of admission."""
    context: NDArray[np.int64]
    """int64[g, cap], KV tokens of each."""
    remaining: NDArray[np.int64]
    """int64[g, cap], output tokens that it has to come."""
    held: NDArray[np.int64]
    """int64[g, cap], its KV blocks."""


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
    requests = _Requests(
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
    shapes = dict.fromkeys(_Engines._fields[: _Engines._fields.index("end_s")], (engines,))
    shapes |= dict.fromkeys(_Engines._fields[len(shapes) + 1 :], (engines, limits.batch_cap))
    zeros = {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}
    state = _Engines(**zeros, end_s=np.full(engines, math.inf))
    arrays = times._replace(linear_s=np.array(times.linear_s), head_s=np.array(times.head_s))
    _advance(state, requests, arrays, limits, longest, concurrency or count, frontend_s)
    log = np.zeros(count, LOG_DTYPE)
    log["id"] = np.arange(count)
    for name in _Requests._fields:
        if name in (LOG_DTYPE.names or ()):
            log[name] = getattr(requests, name)
    log["ttft_s"] = requests.first_token_s - requests.arrival_s + frontend_s
    later = np.maximum(requests.output_tokens - 1, 1)
    log["tpot_s"] = (requests.finish_s - requests.first_token_s) / later
    log["tpot_s"][requests.output_tokens == 1] *= 0.0
    log["tier"] = np.where(np.isnan(requests.finish_s), -1, tier)
    return log


@_compiled
def _advance(
    state: _Engines,
    requests: _Requests,
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
        now = state.end_s.min()
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
                _finish(state, requests, engine, now)
        let_in = _let_in(state, requests, let_in, in_flight + turned_away, now + frontend_s)
        gone = _NONE
        while gone != state.ended.sum():  # a request that fits no engine makes room for another
            gone = state.ended.sum()
            routed = _route(state, requests, limits, routed, arrived)
            # Until the next arrival decode steps concern their own engine alone.
            undisturbed_s = requests.arrival_s[arrived] if arrived < count else math.inf
            if routed < arrived or (closed and engines > 1):
                undisturbed_s = -math.inf
            for engine in range(engines):
                busy = state.end_s[engine] < math.inf
                if not busy and (state.waiting[engine] or _running(state, engine)):
                    _start(state, requests, times, limits, engine, now, undisturbed_s)
        let_in = _let_in(state, requests, let_in, in_flight + turned_away, now + frontend_s)


@_compiled
def _let_in(
    state: _Engines, requests: _Requests, let_in: int, beside: int, arrival_s: float
) -> int:
    """Lets as many requests in as have ended; how many have been let in, ``beside`` of which no
    engine has ended."""
    while let_in < min(state.ended.sum() + beside, len(requests.arrival_s)):
        requests.arrival_s[let_in] = arrival_s
        let_in += 1
    return let_in


@_compiled
def _route(
    state: _Engines, requests: _Requests, limits: EngineLimits, routed: int, arrived: int
) -> int:
    """Hands requests to the least loaded engine of those that have room; how many were handed."""
    while routed < arrived:
        if requests.rejected[routed]:
            routed += 1
            continue
        chosen, least = _NONE, 0
        for engine in range(len(state.used)):
            full = _running(state, engine) + state.waiting[engine] >= limits.batch_cap
            if full or state.waiting_tokens[engine] >= limits.token_budget:
                continue
            load = state.kv_tokens[engine] + state.waiting_tokens[engine]
            for place in range(state.prefilling[engine]):
                load += _prefill_target(requests, state.prompt[engine, place])
            if chosen == _NONE or load < least:
                chosen, least = engine, load
        if chosen == _NONE:
            return routed
        _push(state, requests, chosen, routed)
        routed += 1
    return routed


@_compiled
def _start(
    state: _Engines,
    requests: _Requests,
    times: Times,
    limits: EngineLimits,
    engine: int,
    now: float,
    undisturbed_s: float,
) -> None:
    """Composes the next iteration and notes its end; see ``Engine.start``."""
    # An iteration that only preempts takes no time; the next one finds the freed blocks.
    preempted = _compose(state, requests, limits, engine, now)
    while preempted and not (state.rows[engine] or state.chunks[engine]):
        preempted = _compose(state, requests, limits, engine, now)
    rows, chunks = state.rows[engine], state.chunks[engine]
    if not (rows or chunks):
        return
    if rows == state.decoding[engine] and not chunks and not preempted and now < undisturbed_s:
        now = _pass_steps(state, times, limits, engine, now, undisturbed_s)
    if rows == state.decoding[engine]:
        kv_tokens = state.kv_tokens[engine] + rows
    else:
        kv_tokens = state.context[engine, :rows].sum() + rows
    prompt_tokens, pairs_s = 0, 0.0
    for place in range(chunks):
        chunk = state.chunk[engine, place]
        prefix = requests.computed[state.chunk_of[engine, place]]
        prompt_tokens += chunk
        pairs_s += times.prefill_s_per_pair * (chunk * (prefix + 0.5 * chunk))
    attention = attention_s(times, rows, kv_tokens)
    if times.prefill_first and rows and prompt_tokens:
        duration_s = iteration_s(times, 0, 0, prompt_tokens, chunks, 0.0, pairs_s, 0.0)
        duration_s += iteration_s(times, rows, rows, 0, 0, attention, 0.0, 0.0) - times.host_s
    else:
        duration_s = iteration_s(times, rows, rows, prompt_tokens, chunks, attention, pairs_s, 0.0)
    state.end_s[engine] = now + times.slowdown * duration_s


@_compiled
def _pass_steps(
    state: _Engines,
    times: Times,
    limits: EngineLimits,
    engine: int,
    now: float,
    undisturbed_s: float,
) -> float:
    """Does decode steps of the whole batch that end before ``undisturbed_s`` and after which each
    sequence has a step to go; returns the end of the last one."""
    rows = state.decoding[engine]
    most = state.remaining[engine, :rows].min() - 1
    while most > 0:
        # Blocks of the step after these are taken as well, as those of the first one are.
        if _missing(state, limits, engine, most + 1) <= max(limits.blocks - state.used[engine], 0):
            break
        most //= 2
    kv_tokens, steps = state.kv_tokens[engine], 0
    while steps < most:
        kv_tokens += rows
        attention = attention_s(times, rows, kv_tokens)
        step_s = times.slowdown * iteration_s(times, rows, rows, 0, 0, attention, 0.0, 0.0)
        if now + step_s >= undisturbed_s:
            break
        now += step_s
        steps += 1
    if steps:
        state.used[engine] += _missing(state, limits, engine, steps + 1)
        state.kv_tokens[engine] += steps * rows
        for row in range(rows):
            blocks = _blocks_for(limits, state.context[engine, row] + steps + 1)
            state.held[engine, row] = max(state.held[engine, row], blocks)
            state.context[engine, row] += steps
            state.remaining[engine, row] -= steps
    return now


@_compiled
def _missing(state: _Engines, limits: EngineLimits, engine: int, steps: int) -> int:
    """Blocks that the decoding sequences lack for ``steps`` more tokens."""
    missing = 0
    for row in range(state.decoding[engine]):
        needed = _blocks_for(limits, state.context[engine, row] + steps)
        missing += max(needed - state.held[engine, row], 0)
    return missing


@_compiled
def _compose(
    state: _Engines, requests: _Requests, limits: EngineLimits, engine: int, now: float
) -> bool:
    """Chooses what the next iteration computes; True if that took preemption."""
    state.rows[engine] = state.chunks[engine] = 0
    preempted, through = False, True
    # What is running comes first, in the order of admission.
    while state.rows[engine] < min(state.decoding[engine], limits.token_budget):
        row = state.rows[engine]
        needed = _blocks_for(limits, state.context[engine, row] + 1)
        missing = max(needed - state.held[engine, row], 0)
        request = state.sequence[engine, row]
        while missing > max(limits.blocks - state.used[engine], 0):
            preempted = True
            if _preempt(state, requests, engine) == request:
                through = False
                break
        if not through:
            break
        state.used[engine] += missing
        state.held[engine, row] += missing
        state.rows[engine] += 1
    room = max(limits.token_budget - state.rows[engine], 0)
    place = 0
    while through and room > 0 and place < state.prefilling[engine]:
        request = state.prompt[engine, place]
        before = state.prefilling[engine]
        chunk = _schedule(state, requests, limits, engine, request, room)
        preempted = preempted or state.prefilling[engine] < before
        if not chunk:
            break
        room -= chunk
        place += 1
    # Preempted sequences stay out for an iteration.
    while not preempted and room > 0:
        request = _admit(state, requests, limits, engine, now)
        if request == _NONE:
            break
        room -= _schedule(state, requests, limits, engine, request, room)
    return preempted


@_compiled
def _schedule(
    state: _Engines, requests: _Requests, limits: EngineLimits, engine: int, request: int, room: int
) -> int:
    """Schedules the next chunk of a prompt; its tokens, 0 if the request was preempted."""
    computed = requests.computed[request]
    chunk = min(_prefill_target(requests, request) - computed, room)
    blocks = _blocks_for(limits, computed + chunk) - requests.blocks[request]
    while blocks > max(limits.blocks - state.used[engine], 0):
        if _preempt(state, requests, engine) == request:
            return 0
    state.used[engine] += blocks
    requests.blocks[request] += blocks
    place = state.chunks[engine]
    state.chunk_of[engine, place] = request
    state.chunk[engine, place] = chunk
    state.chunks[engine] += 1
    return chunk


@_compiled
def _preempt(state: _Engines, requests: _Requests, engine: int) -> int:
    """Drops the KV of the sequence that came last, and returns it."""
    if state.prefilling[engine]:
        state.prefilling[engine] -= 1
        victim = state.prompt[engine, state.prefilling[engine]]
        state.used[engine] -= requests.blocks[victim]
        chunks = state.chunks[engine]
        if chunks and state.chunk_of[engine, chunks - 1] == victim:
            state.chunks[engine] -= 1
    else:
        state.decoding[engine] -= 1
        row = state.decoding[engine]
        victim = state.sequence[engine, row]
        requests.generated[victim] = requests.output_tokens[victim] - state.remaining[engine, row]
        state.used[engine] -= state.held[engine, row]
        state.kv_tokens[engine] -= state.context[engine, row]
        state.rows[engine] = min(state.rows[engine], row)
    requests.preemptions[victim] += 1
    _put_back(state, requests, engine, victim)
    return victim


@_compiled
def _admit(
    state: _Engines, requests: _Requests, limits: EngineLimits, engine: int, now: float
) -> int:
    """Moves the head of the queue into the batch if slots and KV blocks allow."""
    while state.waiting[engine] and _running(state, engine) < limits.batch_cap:
        request = state.first[engine]
        blocks = _blocks_for(limits, _prefill_target(requests, request))
        if blocks > limits.blocks:
            _pop(state, requests, engine)
            state.ended[engine] += 1
            if requests.generated[request]:
                requests.lost[request] = True
            else:
                requests.rejected[request] = True
            continue
        if blocks > limits.blocks - state.used[engine]:
            return _NONE
        _pop(state, requests, engine)
        requests.blocks[request] = requests.computed[request] = 0
        if math.isnan(requests.first_scheduled_s[request]):
            requests.first_scheduled_s[request] = now
        state.prompt[engine, state.prefilling[engine]] = request
        state.prefilling[engine] += 1
        return request
    return _NONE


@_compiled
def _finish(state: _Engines, requests: _Requests, engine: int, now: float) -> None:
    """Applies the iteration that ends."""
    rows, kept = state.rows[engine], 0
    state.rows[engine] = 0
    for row in range(state.decoding[engine]):
        request = state.sequence[engine, row]
        if row < rows:
            state.context[engine, row] += 1
            state.remaining[engine, row] -= 1
            state.kv_tokens[engine] += 1
            if state.remaining[engine, row] == 0:
                state.kv_tokens[engine] -= state.context[engine, row]
                state.used[engine] -= state.held[engine, row]
                state.ended[engine] += 1
                requests.finish_s[request] = now
                continue
        if kept < row:
            state.sequence[engine, kept] = request
            state.context[engine, kept] = state.context[engine, row]
            state.remaining[engine, kept] = state.remaining[engine, row]
            state.held[engine, kept] = state.held[engine, row]
        kept += 1
    state.decoding[engine] = kept
    for place in range(state.chunks[engine]):
        request = state.chunk_of[engine, place]
        requests.computed[request] += state.chunk[engine, place]
    state.chunks[engine] = 0
    # Requests whose prompt is not through keep their order.
    unfinished = 0
    for place in range(state.prefilling[engine]):
        request = state.prompt[engine, place]
        if requests.computed[request] == _prefill_target(requests, request):
            _end_prefill(state, requests, engine, request, now)
        else:
            state.prompt[engine, unfinished] = request
            unfinished += 1
    state.prefilling[engine] = unfinished


@_compiled
def _end_prefill(
    state: _Engines, requests: _Requests, engine: int, request: int, now: float
) -> None:
    """The last chunk of a prefill also samples a token."""
    requests.generated[request] += 1
    if math.isnan(requests.first_token_s[request]):
        requests.first_token_s[request] = now
    remaining = requests.output_tokens[request] - requests.generated[request]
    if remaining == 0:
        state.used[engine] -= requests.blocks[request]
        state.ended[engine] += 1
        requests.finish_s[request] = now
        return
    row = state.decoding[engine]
    # The newest token has been sampled, but its KV is written by its own step.
    context = requests.prompt_tokens[request] + requests.generated[request] - 1
    state.sequence[engine, row] = request
    state.context[engine, row] = context
    state.remaining[engine, row] = remaining
    state.held[engine, row] = requests.blocks[request]
    state.kv_tokens[engine] += context
    state.decoding[engine] += 1


@_compiled
def _running(state: _Engines, engine: int) -> int:
    return state.prefilling[engine] + state.decoding[engine]


@_compiled
def _prefill_target(requests: _Requests, request: int) -> int:
    return requests.prompt_tokens[request] + requests.generated[request]


@_compiled
def _blocks_for(limits: EngineLimits, tokens: int) -> int:
    return -(-tokens // limits.block_tokens)


@_compiled
def _push(state: _Engines, requests: _Requests, engine: int, request: int) -> None:
    """Adds a request at the end of the queue."""
    if state.waiting[engine]:
        requests.behind[state.last[engine]] = request
    else:
        state.first[engine] = request
    state.last[engine] = request
    state.waiting[engine] += 1
    state.waiting_tokens[engine] += _prefill_target(requests, request)


@_compiled
def _put_back(state: _Engines, requests: _Requests, engine: int, request: int) -> None:
    """Adds a request, which was preempted, at the head of the queue."""
    if state.waiting[engine]:
        requests.behind[request] = state.first[engine]
    else:
        state.last[engine] = request
    state.first[engine] = request
    state.waiting[engine] += 1
    state.waiting_tokens[engine] += _prefill_target(requests, request)


@_compiled
def _pop(state: _Engines, requests: _Requests, engine: int) -> None:
    """Takes the head of the queue out."""
    request = state.first[engine]
    state.first[engine] = requests.behind[request]
    state.waiting[engine] -= 1
    state.waiting_tokens[engine] -= _prefill_target(requests, request)
