"""What a client measures, in real time, against the reference simulator."""

from __future__ import annotations

import pytest

from benchmarks.mock_engine import Load, served, simulated
from jaxserve.mock_engine.settings import MockEngineSettings


@pytest.mark.slow
def test_ttft_and_tpot_of_a_load_test() -> None:
    """Within 5 % at a tenth of the GPU's speed, where the host's own time hardly counts."""
    settings = MockEngineSettings("llama-3.1-8b", "h100-sxm-80gb", speed=0.1)
    load = Load(rate_rps=10.0, requests=40)
    expected, run = simulated(settings, load), served(settings, load)
    print(expected, run)
    if settings.speed * run.late_s > 0.01 * expected.ttft_s:
        pytest.skip(f"the machine is too busy: the client woke {1e3 * run.late_s:.1f} ms late")
    assert run.latencies.ttft_s == pytest.approx(expected.ttft_s, rel=0.05)
    assert run.latencies.tpot_s == pytest.approx(expected.tpot_s, rel=0.05)
