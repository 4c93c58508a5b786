"""One serving engine as compiled code: ``Engine`` of ``engine.py`` for plain deployments.

Functions have the names of the methods that they stand for.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable

from jaxserve.sim.machine import tabulated
from jaxserve.sim.machine.tabulated import Times
from jaxserve.sim.reference.compiled_columns import (
    NONE,
    EngineColumns,
    EngineLimits,
    RequestColumns,
    blocks_for,
    jitted,
    pop,
    prefill_target,
    put_back,
    running,
)

_LARGEST = np.iinfo(np.int64).max
# Functions that these call have to be known to the compiler as well.
for _equation in (tabulated.fullest_rank, tabulated.kernel_s):
    register_jitable(_equation)
attention_s = register_jitable(tabulated.attention_s)
iteration_s = register_jitable(tabulated.iteration_s)


@jitted
def start(
    state: EngineColumns,
    requests: RequestColumns,
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
        kv_tokens = rows
        for row in range(rows):
            kv_tokens += state.context[engine, row]
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


@jitted
def _pass_steps(
    state: EngineColumns,
    times: Times,
    limits: EngineLimits,
    engine: int,
    now: float,
    undisturbed_s: float,
) -> float:
    """Does decode steps of the whole batch that end before ``undisturbed_s`` and after which each
    sequence has a step to go; returns the end of the last one."""
    rows, most = state.decoding[engine], state.steps_to_finish[engine] - 1
    while True:
        end_s, kv_tokens, steps = now, state.kv_tokens[engine], 0
        while steps < most:
            kv_tokens += rows
            attention = attention_s(times, rows, kv_tokens)
            step_s = times.slowdown * iteration_s(times, rows, rows, 0, 0, attention, 0.0, 0.0)
            if end_s + step_s >= undisturbed_s:
                break
            end_s += step_s
            steps += 1
        # Blocks of the step after these are taken as well, as those of the first one are.
        if not steps or _grow(state, limits, engine, rows, steps + 1):
            break
        most = steps // 2
    _advance_decoding(state, engine, rows, steps)
    return end_s


@jitted
def _advance_decoding(state: EngineColumns, engine: int, rows: int, steps: int) -> None:
    """Advances the first ``rows`` decoding sequences by ``steps``, none of which ends before the
    last one."""
    context, remaining = state.context[engine], state.remaining[engine]
    for row in range(rows):
        context[row] += steps
        remaining[row] -= steps
    state.kv_tokens[engine] += steps * rows
    state.steps_to_finish[engine] -= steps


@jitted
def _grow(state: EngineColumns, limits: EngineLimits, engine: int, rows: int, steps: int) -> bool:
    """Gives the first ``rows`` decoding sequences the blocks for ``steps`` more tokens; False, and
    nothing is given, if there are too few."""
    context, held = state.context[engine, :rows], state.held[engine, :rows]
    missing = 0
    for row in range(rows):
        missing += _missing(limits, context[row], held[row], steps)
    if missing > max(limits.blocks - state.used[engine], 0):
        return False
    if missing:
        for row in range(rows):
            held[row] += _missing(limits, context[row], held[row], steps)
        state.used[engine] += missing
    return True


@jitted
def _missing(limits: EngineLimits, context: int, held: int, steps: int) -> int:
    """Blocks that a sequence lacks for ``steps`` more tokens."""
    tokens = context + steps - held * limits.block_tokens
    return blocks_for(limits, tokens) if tokens > 0 else 0


@jitted
def _compose(
    state: EngineColumns, requests: RequestColumns, limits: EngineLimits, engine: int, now: float
) -> bool:
    """Chooses what the next iteration computes; True if that took preemption."""
    state.rows[engine] = state.chunks[engine] = 0
    preempted, through = False, True
    # What is running comes first, in the order of admission.
    rows = min(state.decoding[engine], limits.token_budget)
    if _grow(state, limits, engine, rows, 1):
        state.rows[engine] = rows
    while state.rows[engine] < min(state.decoding[engine], limits.token_budget):
        row = state.rows[engine]
        missing = _missing(limits, state.context[engine, row], state.held[engine, row], 1)
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
        if request == NONE:
            break
        room -= _schedule(state, requests, limits, engine, request, room)
    return preempted


@jitted
def _schedule(
    state: EngineColumns,
    requests: RequestColumns,
    limits: EngineLimits,
    engine: int,
    request: int,
    room: int,
) -> int:
    """Schedules the next chunk of a prompt; its tokens, 0 if the request was preempted."""
    computed = requests.computed[request]
    chunk = min(prefill_target(requests, request) - computed, room)
    blocks = blocks_for(limits, computed + chunk) - requests.blocks[request]
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


@jitted
def _preempt(state: EngineColumns, requests: RequestColumns, engine: int) -> int:
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
    put_back(state, requests, engine, victim)
    return victim


@jitted
def _admit(
    state: EngineColumns, requests: RequestColumns, limits: EngineLimits, engine: int, now: float
) -> int:
    """Moves the head of the queue into the batch if slots and KV blocks allow."""
    while state.waiting[engine] and running(state, engine) < limits.batch_cap:
        request = state.first[engine]
        blocks = blocks_for(limits, prefill_target(requests, request))
        if blocks > limits.blocks:
            pop(state, requests, engine)
            state.ended[engine] += 1
            if requests.generated[request]:
                requests.lost[request] = True
            else:
                requests.rejected[request] = True
            continue
        if blocks > limits.blocks - state.used[engine]:
            return NONE
        pop(state, requests, engine)
        requests.blocks[request] = requests.computed[request] = 0
        if math.isnan(requests.first_scheduled_s[request]):
            requests.first_scheduled_s[request] = now
        state.prompt[engine, state.prefilling[engine]] = request
        state.prefilling[engine] += 1
        return request
    return NONE


@jitted
def finish(state: EngineColumns, requests: RequestColumns, engine: int, now: float) -> None:
    """Applies the iteration that ends."""
    rows = state.rows[engine]
    state.rows[engine] = 0
    if rows:
        _advance_decoding(state, engine, rows, 1)
        if state.steps_to_finish[engine] <= 0:
            _end_decoding(state, requests, engine, now)
    for place in range(state.chunks[engine]):
        request = state.chunk_of[engine, place]
        requests.computed[request] += state.chunk[engine, place]
    state.chunks[engine] = 0
    # Requests whose prompt is not through keep their order.
    unfinished = 0
    for place in range(state.prefilling[engine]):
        request = state.prompt[engine, place]
        if requests.computed[request] == prefill_target(requests, request):
            _end_prefill(state, requests, engine, request, now)
        else:
            state.prompt[engine, unfinished] = request
            unfinished += 1
    state.prefilling[engine] = unfinished


@jitted
def _end_decoding(state: EngineColumns, requests: RequestColumns, engine: int, now: float) -> None:
    """Takes the sequences out that are through; the others keep their order."""
    sequence, context = state.sequence[engine], state.context[engine]
    remaining, held = state.remaining[engine], state.held[engine]
    kept, fewest = 0, _LARGEST
    for row in range(state.decoding[engine]):
        if remaining[row] == 0:
            state.kv_tokens[engine] -= context[row]
            state.used[engine] -= held[row]
            state.ended[engine] += 1
            requests.finish_s[sequence[row]] = now
            continue
        sequence[kept], context[kept] = sequence[row], context[row]
        remaining[kept], held[kept] = remaining[row], held[row]
        fewest = min(fewest, remaining[row])
        kept += 1
    state.decoding[engine] = kept
    state.steps_to_finish[engine] = fewest


@jitted
def _end_prefill(
    state: EngineColumns, requests: RequestColumns, engine: int, request: int, now: float
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
    state.steps_to_finish[engine] = min(state.steps_to_finish[engine], remaining)
    state.held[engine, row] = requests.blocks[request]
    state.kv_tokens[engine] += context
    state.decoding[engine] += 1
