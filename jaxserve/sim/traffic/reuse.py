"""Reuse of prompts: the share that a trace finds in a prefix cache, by the size of the cache.

A cache that forgets what was used longest ago holds a block if fewer tokens than it has room for
have been used since the block was (Mattson et al., IBM Systems Journal 9, 1970): its reuse
distance. Distances are counted once, and say for every size what is found. Here a prompt's blocks
that were last used by the same request make a run, so that a run costs as much as a block would.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from jaxserve.sim.machine.memory import BLOCK_TOKENS
from jaxserve.sim.traffic.traces import Trace

CACHE_TOKENS = (4096.0 * 2.0 ** (np.arange(25) / 2.0)).astype(np.float32)
"""float32[25], sizes of caches for which curves are tabulated, tokens: two to an octave."""

MAX_MEASURED = 20_000
"""Requests that are looked at, the first ones of a trace that has more."""


def cached_tokens(
    trace: Trace, sizes: NDArray[np.float32], gpus: int = 1, seed: int = 0
) -> NDArray[np.float64]:
    """Prompt tokens that requests find cached.

    Args:
      trace: requests with blocks; n are played, all or the first ``MAX_MEASURED``.
      sizes: [C], tokens that the KV pool of one GPU has room for.
      gpus: each with a cache of its own; requests go to a random one.

    Returns:
      float64[n, C]
    """
    assert trace.blocks is not None
    count = min(len(trace), MAX_MEASURED)
    home = np.random.default_rng(seed).integers(gpus, size=count)
    prompt = trace.prompt_tokens[:count].astype(np.int64)
    found = np.zeros((count, len(sizes)))
    for gpu in range(gpus):
        members = np.flatnonzero(home == gpu)
        requests, distance, tokens = _runs(trace, members)
        part = np.clip(sizes - distance[:, None], 0.0, tokens[:, None])
        np.add.at(found, requests, part)
    # The last token is computed anyway, and only full blocks are found again.
    found = np.minimum(found, prompt[:, None] - 1.0)
    return found // BLOCK_TOKENS * BLOCK_TOKENS


def _runs(
    trace: Trace, members: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Runs of blocks that the requests ``members`` use again on one GPU.

    Returns:
      [r] each: the request, the reuse distance of the run's first token, and the run's tokens.
    """
    blocks = trace.blocks
    assert blocks is not None
    sizes = blocks.block_tokens(trace.prompt_tokens)
    used = _Tree(len(members))
    last: dict[int, int] = {}  # last use of each block
    rows: list[tuple[int, float, float]] = []
    for place, request in enumerate(members.tolist()):
        span = slice(blocks.starts[request], blocks.starts[request + 1])
        names, tokens = blocks.names[span].tolist(), sizes[span].tolist()
        users = [last.get(name, -1) for name in names]
        for user, run in itertools.groupby(zip(users, tokens, strict=True), key=lambda u: u[0]):
            amount = sum(size for _, size in run)
            if user >= 0:
                # Everything used since, and this prompt's blocks before the run are among it.
                rows.append((request, used.after(user), amount))
                used.add(user, -amount)
            used.add(place, amount)
        last.update(dict.fromkeys(names, place))
        unnamed = int(trace.prompt_tokens[request]) - sum(tokens)
        used.add(place, unnamed + int(trace.output_tokens[request]))
    if not rows:
        return np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
    request, distance, amount = np.array(rows).T
    return request.astype(np.int64), distance, amount


class _Tree:
    """Sums over the requests after one, as they change (Fenwick, Softw. Pract. Exp. 24, 1994)."""

    def __init__(self, count: int) -> None:
        self._sums = [0.0] * (count + 1)
        self._total = 0.0

    def add(self, place: int, amount: float) -> None:
        self._total += amount
        place += 1
        while place < len(self._sums):
            self._sums[place] += amount
            place += place & -place

    def after(self, place: int) -> float:
        """Sum over all places behind ``place``."""
        total, place = self._total, place + 1
        while place:
            total -= self._sums[place]
            place -= place & -place
        return total
