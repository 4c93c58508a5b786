"""State of compiled deployments: columns of all requests and engines, as compiled code has no
objects, and the queues of the engines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import config
from numpy.typing import NDArray

from jaxserve.runtime.jax_setup import cache_folder
from jaxserve.sim.machine import tabulated

NONE = -1
"""No engine, or no request."""
_SOURCES = ("compiled.py", "compiled_engine.py", "compiled_columns.py")


def _folder() -> Path | None:
    """Folder of compiled functions for the sources as they are; None if none can be written.

    Numba looks at the file of a function alone, and would keep code with equations or columns of
    another file as it was before.
    """
    folder = cache_folder()
    if folder is None:
        return None
    here = [Path(__file__).with_name(name) for name in _SOURCES]
    files = [*here, Path(tabulated.__file__)]
    sources = hashlib.sha256(b"".join(file.read_bytes() for file in files))
    return folder / "numba" / sources.hexdigest()[:16]


_FOLDER = _folder()


def jitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function, once for all processes where a folder for it can be written.

    Functions allocate nothing: Numba would count the references to each of the columns at every
    call, which took most of the time. They are inlined, as a call passes all columns.
    """
    how: Any = {"_nrt": False, "forceinline": True}
    if _FOLDER is None:
        return numba.njit(**how)(function)
    settings: Any = config
    others, settings.CACHE_DIR = settings.CACHE_DIR, str(_FOLDER)
    try:
        return numba.njit(cache=True, **how)(function)
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
    steps_to_finish: NDArray[np.int64]
    """steps before which none of these ends."""
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
def running(state: EngineColumns, engine: int) -> int:
    return state.prefilling[engine] + state.decoding[engine]


@jitted
def prefill_target(requests: RequestColumns, request: int) -> int:
    return requests.prompt_tokens[request] + requests.generated[request]


@jitted
def blocks_for(limits: EngineLimits, tokens: int) -> int:
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
def put_back(state: EngineColumns, requests: RequestColumns, engine: int, request: int) -> None:
    """Adds a request, which was preempted, at the head of the queue."""
    if state.waiting[engine]:
        requests.behind[request] = state.first[engine]
    else:
        state.last[engine] = request
    state.first[engine] = request
    state.waiting[engine] += 1
    state.waiting_tokens[engine] += prefill_target(requests, request)


@jitted
def pop(state: EngineColumns, requests: RequestColumns, engine: int) -> None:
    """Takes the head of the queue out."""
    request = state.first[engine]
    state.first[engine] = requests.behind[request]
    state.waiting[engine] -= 1
    state.waiting_tokens[engine] -= prefill_target(requests, request)
