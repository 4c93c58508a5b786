"""What the reference simulator counts: latencies between tokens."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.reference.counters import Counters

iterations = st.lists(st.tuples(st.floats(0.001, 1.0), st.integers(1, 64)), min_size=1, max_size=30)


@given(iterations)
def test_each_step_of_each_sequence_counts_once(decodes):
    """An iteration of a large batch weighs as much as all its sequences."""
    mean_s, median_s, p99_s = Counters(decodes=decodes).itl_s()
    each_s = np.sort(np.concatenate([np.full(count, seconds) for seconds, count in decodes]))
    np.testing.assert_allclose(mean_s, each_s.mean())
    assert each_s[(len(each_s) - 1) // 2] <= median_s <= each_s[len(each_s) // 2]
    assert p99_s == np.quantile(each_s, 0.99, method="inverted_cdf")


def test_without_a_step_there_is_no_latency():
    """NaN, which a window reports as 0."""
    assert np.isnan(Counters().itl_s()).all()
