"""Promises of the replay of a real vLLM run of a model with experts."""

import pytest

from jaxserve.studies.fidelity import vllm_expert_run
from jaxserve.studies.fidelity.measurements import shared_data

SHARED = shared_data()
needs_run = pytest.mark.skipif(SHARED is None, reason="measured data is not on this machine")


@needs_run
def test_bars_hold():
    """TTFT mean and p99 and TPOT mean of the real server are met, with and without host time."""
    assert SHARED is not None
    rows = vllm_expert_run.vllm_expert_fidelity(SHARED)
    assert [row.bar for row in rows] == [5.0, 5.0, 3.0] * 2
    assert all(row.passed and row.measured <= row.bar for row in rows)


@needs_run
def test_experts_take_longer_the_more_tokens_choose():
    """One token runs through its own experts; many through all, whose weights are read once."""
    assert SHARED is not None
    timer = vllm_expert_run.ExpertTimer(SHARED / vllm_expert_run.DIRECTORY)
    times_s = [timer.experts_s(tokens) for tokens in (1, 8, 64, 512, 4096)]
    assert times_s == sorted(times_s)
    assert times_s[3] < 512 * times_s[0] / 10
