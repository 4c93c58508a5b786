"""Promises of the replay of a real vLLM run."""

import numpy as np
import pytest

from jaxserve.studies.fidelity import vllm_run
from jaxserve.studies.fidelity.measurements import shared_data

SHARED = shared_data()
needs_run = pytest.mark.skipif(SHARED is None, reason="measured data is not on this machine")


@pytest.mark.slow
@needs_run
def test_bars_hold():
    """TTFT mean and p99 and TPOT mean of the real server are met, with and without host time. They
    rest on its profile: with a data sheet in its place errors are many times as large. The fitted
    table meets TTFT, and TPOT within 5 %."""
    assert SHARED is not None
    rows = vllm_run.vllm_fidelity(SHARED)
    assert [row.bar for row in rows] == [5.0] * 3 + [20.0] + [5.0] * 3 + [20.0] + [3.0] * 3 + [20.0]
    fitted = [row for row in rows if "fit-kernels" in row.check]
    assert len(fitted) == 3 and all(row.measured < 5.0 for row in fitted)
    sheet = [row for row in rows if "data sheet" in row.check]
    profiled = [row for row in rows if row not in fitted and row not in sheet]
    assert len(profiled) == 6
    assert all(row.passed and row.measured <= row.bar for row in profiled)
    best = max(row.measured for row in profiled)
    assert all(row.measured > 3 * best for row in sheet)


@needs_run
def test_whole_distribution_follows_the_real_run():
    """Not only the means: deciles of TTFT and TPOT, and each request's own TTFT."""
    assert SHARED is not None
    directory = SHARED / vllm_run.DIRECTORY
    real, ours = vllm_run.served(directory), vllm_run.replay(directory)
    deciles = np.arange(10, 100, 10)
    ttft_s, tpot_s = real[:, 1] - real[:, 0], (real[:, 2] - real[:, 1]) / (real[:, 4] - 1)
    np.testing.assert_allclose(
        np.percentile(ours["ttft_s"], deciles), np.percentile(ttft_s, deciles), rtol=0.06
    )
    np.testing.assert_allclose(
        np.percentile(ours["tpot_s"], deciles), np.percentile(tpot_s, deciles), rtol=0.05
    )
    assert np.corrcoef(ours["ttft_s"], ttft_s)[0, 1] > 0.995
    assert ours["finish_s"].max() == pytest.approx(real[:, 2].max(), rel=0.02)


@needs_run
def test_prefix_cache_is_needed_to_explain_the_run():
    """Recomputing preempted sequences in full would make the run longer than it was."""
    assert SHARED is not None
    directory = SHARED / vllm_run.DIRECTORY
    cached, full = (vllm_run.replay(directory, caching) for caching in (True, False))
    assert cached["preemptions"].sum() > 100
    assert full["finish_s"].max() > 1.02 * cached["finish_s"].max()
