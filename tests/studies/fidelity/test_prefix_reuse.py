"""Prefix reuse against a plain cache."""

import numpy as np
import pytest

from jaxserve.sim.traffic.prompt_blocks import from_ids
from jaxserve.sim.traffic.traces import Trace, load_trace
from jaxserve.studies.fidelity import prefix_reuse
from jaxserve.studies.fidelity.measurements import shared_data

SHARED = shared_data()


def conversations(count=120):
    """Eight conversations whose prompts grow by a block a turn."""
    talk = np.random.default_rng(0).integers(8, size=count)
    turns = np.array([(talk[: i + 1] == talk[i]).sum() for i in range(count)])
    ids = [[f"{t}-{i}" for i in range(n)] for t, n in zip(talk, turns, strict=True)]
    return Trace(
        np.arange(count, dtype=float),
        (512 * turns).astype(np.int32),
        np.full(count, 20, np.int32),
        blocks=from_ids(ids, 512 * turns, 512),
    )


@pytest.mark.parametrize("cache_tokens", [10_000, 60_000, 1_000_000])
def test_an_engine_finds_what_a_plain_cache_finds(cache_tokens):
    """Within the bar, and all that is repeated where there is room for all of it."""
    trace = conversations()
    plain, ours = (
        share(trace, cache_tokens)
        for share in (prefix_reuse.lru_hit_share, prefix_reuse.engine_hit_share)
    )
    assert 100 * abs(plain - ours) < prefix_reuse.HIT_BAR
    if cache_tokens == 1_000_000:
        assert plain == pytest.approx(trace.repeated_share)


@pytest.mark.skipif(SHARED is None, reason="the trace is not on this machine")
def test_short_prompts_keep_their_blocks():
    """What is left of the trace is repeated as before, and nothing of it is too long."""
    assert SHARED is not None
    trace = load_trace(SHARED / prefix_reuse.FILE)
    short = prefix_reuse.short_prompts(trace)
    assert short.prompt_tokens.max() <= prefix_reuse.LONGEST_PROMPT < trace.prompt_tokens.max()
    assert trace.repeated_share == pytest.approx(0.353, abs=0.001)
    assert 0.2 < (short.repeated_share or 0.0) < 0.5
