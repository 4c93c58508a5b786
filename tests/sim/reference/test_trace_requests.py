"""Traces as requests."""

import numpy as np
import pytest

from jaxserve.sim.reference.trace_requests import trace_requests
from jaxserve.sim.traffic.prompt_blocks import from_ids
from jaxserve.sim.traffic.trace_classes import ClassMap
from jaxserve.sim.traffic.traces import Trace


def test_requests_keep_what_the_trace_says():
    """Times from the start of the window, lengths, classes and blocks; nothing outside of it."""
    lengths = np.array([100, 900, 600, 100])
    trace = Trace(
        np.array([0.0, 2.0, 3.5, 9.0]),
        lengths.astype(np.int32),
        np.array([1, 2, 3, 4], np.int32),
        blocks=from_ids([[1], [1, 2], [1, 2], [3]], lengths, 512),
    )
    found = trace_requests(trace, ClassMap(((500,),)), start_s=2.0, end_s=9.0, priority=[2, 0])
    assert [(r.id, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found] == [
        (0, 0.0, 900, 2),
        (1, 1.5, 600, 3),
    ]
    assert [(r.traffic_class, r.priority) for r in found] == [(1, 0), (1, 0)]
    assert found[0].prefix_tokens == 512
    np.testing.assert_array_equal(found[0].prefix_ids, found[1].prefix_ids)
    assert found[0].acceptance is None


def test_a_trace_without_blocks_shares_nothing():
    """Then every block of a request is its own."""
    trace = Trace(np.zeros(2), np.full(2, 64, np.int32), np.ones(2, np.int32))
    first, second = trace_requests(trace)
    assert not set(first.block_names(16, 4)) & set(second.block_names(16, 4))
    assert first.shareable_blocks(16) == 0 and first.traffic_class == 0
    assert first.ttft_s != pytest.approx(0.0)
