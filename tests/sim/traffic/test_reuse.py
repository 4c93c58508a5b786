"""What a prefix cache finds, by its size: against a cache that is played."""

from collections import OrderedDict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.traffic.prompt_blocks import from_ids
from jaxserve.sim.traffic.reuse import cached_tokens
from jaxserve.sim.traffic.traces import Trace

BLOCK = 16
PROMPTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 8), st.integers(1, 40)), min_size=1, max_size=40
)


def trace_of(prompts):
    """A trace of (conversation, blocks, output tokens); a conversation's prompts begin alike."""
    ids = [[f"{talk}-{i}" for i in range(blocks)] for talk, blocks, _ in prompts]
    lengths = np.array([blocks * BLOCK for _, blocks, _ in prompts])
    return Trace(
        np.arange(len(prompts), dtype=float),
        lengths.astype(np.int32),
        np.array([output for *_, output in prompts], np.int32),
        blocks=from_ids(ids, lengths, BLOCK),
    )


def played(trace, capacity):
    """Tokens found by a cache of single tokens that forgets the one unused for longest."""
    cache, found = OrderedDict(), []
    for i in range(len(trace)):
        names = [(n, t) for n in trace.blocks.of(i).tolist() for t in range(BLOCK)]
        hits = 0
        while hits < len(names) and names[hits] in cache:
            hits += 1
        found.append(min(hits, len(names) - 1) // BLOCK * BLOCK)
        # What it generates is nobody else's, and the end of a prompt is forgotten first.
        own = [("output", i, t) for t in range(trace.output_tokens[i])]
        for token in (*own, *reversed(names)):
            cache[token] = None
            cache.move_to_end(token)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found


@given(PROMPTS, st.integers(1, 600))
def test_reuse_distances_tell_what_a_cache_finds(prompts, capacity):
    """One count of distances says for any size what a cache of that size finds."""
    trace = trace_of(prompts)
    found = cached_tokens(trace, np.array([capacity], np.float32))[:, 0]
    assert found.tolist() == played(trace, capacity)


def test_more_room_finds_more_and_more_gpus_find_less():
    """Each GPU sees only its own share of a conversation."""
    rng = np.random.default_rng(0)
    trace = trace_of([(int(rng.integers(4)), int(rng.integers(1, 9)), 5) for _ in range(400)])
    sizes = np.array([50, 200, 800, 10_000], np.float32)
    one, four = (cached_tokens(trace, sizes, gpus).sum(axis=0) for gpus in (1, 4))
    assert (np.diff(one) >= 0).all() and one[0] < one[-1]
    assert (four <= one * 1.01).all() and four[-1] < one[-1]
