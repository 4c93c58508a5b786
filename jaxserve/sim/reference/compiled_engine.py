"""One serving engine as compiled code: ``Engine`` of ``engine.py`` for plain deployments.

Functions have the names of the methods that they stand for. The state of all engines and requests
is in columns, as compiled code has no objects.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import config
from numba.extending import register_jitable
from numpy.typing import NDArray

from jaxserve.runtime.jax_setup import cache_folder
from jaxserve.sim.machine import tabulated
from jaxserve.sim.machine.tabulated import Times

NONE = -1
"""No engine, or no request."""
# Functions that these call have to be known to the compiler as well.
for _equation in (tabulated.fullest_rank, tabulated.kernel_s):
    register_jitable(_equation)
attention_s = register_jitable(tabulated.attention_s)
iteration_s = register_jitable(tabulated.iteration_s)


def _folder() -> Path | None:
    """Folder of compiled functions for the sources as they are; None if none can be written.

    Numba looks at the file of a function alone, and would keep code with equations or columns of
    another file as it was before.
    """
    folder = cache_folder()
    if folder is None:
        return None
    files = (Path(__file__), Path(__file__).with_name("compiled.py"), Path(tabulated.__file__))
    sources = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return folder / "numba" / sources.hexdigest()[:16]


_FOLDER = _folder()


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function, once for all processes where a folder for it can be written."""
    if _FOLDER is None:
        return numba.njit(function)
    settings: Any = config
    others, settings.CACHE_DIR = settings.CACHE_DIR, str(_FOLDER)
    try:
        return numba.njit(cache=True)(function)
    finally:
        settings.CACHE_DIR = others


class EngineLimits(NamedTuple):
    """Settings of every engine."""

    batch_cap: int
    token_budget: int
    blocks: int
    """KV blocks of an engine."""
    block_tokens: int


class RequestColumns(NamedTuple):
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


class EngineColumns(NamedTuple):
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


@jitted
def _missing(state: EngineColumns, limits: EngineLimits, engine: int, steps: int) -> int:
    """Blocks that the decoding sequences lack for ``steps`` more tokens."""
    missing = 0
    for row in range(state.decoding[engine]):
        needed = _blocks_for(limits, state.context[engine, row] + steps)
        missing += max(needed - state.held[engine, row], 0)
    return missing


@jitted
def _compose(
    state: EngineColumns, requests: RequestColumns, limits: EngineLimits, engine: int, now: float
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
    _put_back(state, requests, engine, victim)
    return victim


@jitted
def _admit(
    state: EngineColumns, requests: RequestColumns, limits: EngineLimits, engine: int, now: float
) -> int:
    """Moves the head of the queue into the batch if slots and KV blocks allow."""
    while state.waiting[engine] and running(state, engine) < limits.batch_cap:
        request = state.first[engine]
        blocks = _blocks_for(limits, prefill_target(requests, request))
        if blocks > limits.blocks:
            _pop(state, requests, engine)
            state.ended[engine] += 1
            if requests.generated[request]:
                requests.lost[request] = True
            else:
                requests.rejected[request] = True
            continue
        if blocks > limits.blocks - state.used[engine]:
            return NONE
        _pop(state, requests, engine)
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
        if requests.computed[request] == prefill_target(requests, request):
            _end_prefill(state, requests, engine, request, now)
        else:
            state.prompt[engine, unfinished] = request
            unfinished += 1
    state.prefilling[engine] = unfinished


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
    state.held[engine, row] = requests.blocks[request]
    state.kv_tokens[engine] += context
    state.decoding[engine] += 1


@jitted
def running(state: EngineColumns, engine: int) -> int:
    return state.prefilling[engine] + state.decoding[engine]


@jitted
def prefill_target(requests: RequestColumns, request: int) -> int:
    return requests.prompt_tokens[request] + requests.generated[request]


@jitted
def _blocks_for(limits: EngineLimits, tokens: int) -> int:
    return -(-tokens // limits.block_tokens)


@jitted
def push(state: EngineColumns, requests: RequestColumns, engine: int, request: int) -> None:
    """Adds a request at the end of the queue."""
    if state.waiting[engine]:
        requests.behind[state.last[engine]] = request
    else:
        state.first[engine] = request
    state.last[engine] = request
    state.waiting[engine] += 1
    state.waiting_tokens[engine] += prefill_target(requests, request)


@jitted
def _put_back(state: EngineColumns, requests: RequestColumns, engine: int, request: int) -> None:
    """Adds a request, which was preempted, at the head of the queue."""
    if state.waiting[engine]:
        requests.behind[request] = state.first[engine]
    else:
        state.last[engine] = request
    state.first[engine] = request
    state.waiting[engine] += 1
    state.waiting_tokens[engine] += prefill_target(requests, request)


@jitted
def _pop(state: EngineColumns, requests: RequestColumns, engine: int) -> None:
    """Takes the head of the queue out."""
    request = state.first[engine]
    state.first[engine] = requests.behind[request]
    state.waiting[engine] -= 1
    state.waiting_tokens[engine] -= prefill_target(requests, request)
