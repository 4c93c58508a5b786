"""Promises of the comparison with Vidur."""

import math

import numpy as np
import pytest

from jaxserve.studies.fidelity import vidur
from jaxserve.studies.fidelity.measurements import shared_data

SHARED = shared_data()
needs_rows = pytest.mark.skipif(SHARED is None, reason="measured data is not on this machine")


@pytest.fixture(scope="module")
def errors():
    assert SHARED is not None
    return vidur.compare_all(SHARED)


@pytest.fixture(scope="module")
def timer():
    assert SHARED is not None
    return vidur.VidurTimer(SHARED)


@pytest.mark.slow
@needs_rows
def test_bars_hold(errors, monkeypatch):
    """Throughput, TPOT and TTFT are within the bars, and the rows say how many points count."""
    assert SHARED is not None
    monkeypatch.setattr(vidur, "compare_all", lambda directory: errors)
    rows = vidur.vidur_fidelity(SHARED)
    assert [row.bar for row in rows] == [2.0, 8.0, 12.0, 12.0]
    assert all(row.passed and 0 < row.measured <= row.bar for row in rows)
    assert "7 rows" in rows[0].detail and "35 rows" in rows[1].detail


@pytest.mark.slow
@needs_rows
def test_every_row_is_close_and_not_only_the_median(errors):
    """No scenario is far off: outliers stay where the profile's tiles and saturation put them."""
    assert len(errors) == 35
    assert max(abs(row.throughput) for row in errors) < 0.05
    assert max(abs(row.tpot) for row in errors) < 0.14
    calm = [row for row in errors if not row.name.startswith("near")]
    assert max(abs(row.ttft_p50) for row in calm) < 0.12
    assert max(abs(row.ttft_p99) for row in calm) < 0.12


@needs_rows
def test_workload_is_vidurs_own(errors):
    """Runs below saturation end when Vidur's do: the arrivals are the same to the last one."""
    below = [row for row in errors if not row.saturated and "cap 8," in row.name]
    assert len(below) == 12
    assert max(abs(row.throughput) for row in below) < 0.002


@needs_rows
def test_trace_lengths_are_those_of_the_reference_run():
    """The first 400 and 600 requests of the permuted trace have as many tokens as Vidur served."""
    assert SHARED is not None
    lengths = vidur.trace_lengths(SHARED)
    assert lengths[:400, 1].sum() == pytest.approx(1440.17 * 62.21, rel=1e-3)
    assert lengths[:600, 1].sum() == pytest.approx(845.02 * 158.41, rel=1e-3)
    assert lengths.sum(axis=1).max() <= vidur.LONGEST_REQUEST_TOKENS and lengths.min() >= 1


def test_gaps_are_clipped_exponentials():
    """Clipping at three means raises the true rate by 5 %."""
    row = {"qps": 4.0, "n_req": 50_000, "prompt": 128.0, "output": 64.0}
    requests = vidur.workload(row, np.empty((0, 2)))
    gaps = np.diff([request.arrival_s for request in requests])
    assert gaps.max() <= 3.0 / 4.0 + 1e-9
    assert 1 / gaps.mean() == pytest.approx(4.0 / (1 - math.exp(-3)), rel=0.02)
    assert {(request.prompt_tokens, request.output_tokens) for request in requests} == {(128, 64)}


@needs_rows
def test_timer_rounds_as_vidur_does(timer):
    """Tokens go up to 8, KV to 64, and company costs attention a tenth."""

    def prefill_s(*chunks):
        return timer.iteration_s(decode_seqs=0, kv_tokens=0, chunks=chunks)

    assert timer.iteration_s(decode_seqs=1, kv_tokens=65) == timer.iteration_s(
        decode_seqs=1, kv_tokens=128
    )
    assert timer.iteration_s(decode_seqs=1, kv_tokens=128) < timer.iteration_s(
        decode_seqs=1, kv_tokens=129
    )
    inside_s = prefill_s((1018, 0)) - prefill_s((1017, 0))
    across_s = prefill_s((1025, 0)) - prefill_s((1024, 0))
    assert 0 < 20 * inside_s < across_s
    # Chunks of 600 and 800 tokens count as the work of one of 1000, in company.
    together_s = prefill_s((600, 0), (800, 0)) - prefill_s((1400, 0))
    expected_s = 32 * (1.1 * timer._prefill_s(1000, 0) - timer._prefill_s(1400, 0))
    assert together_s == pytest.approx(expected_s, rel=1e-6)


@needs_rows
def test_timer_contains_the_profile_constants(timer):
    """At one token the linear layers take their constant and the weight stream."""
    decode_s = timer.iteration_s(decode_seqs=1, kv_tokens=64)
    weights_s = 2 * 6_979_321_856 / (2.039e12 * 0.918)
    assert decode_s == pytest.approx(2.363e-3 + weights_s, rel=0.08)
    assert decode_s > 2.363e-3 + weights_s
