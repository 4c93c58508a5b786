"""Latencies of the mock engine, in real and in virtual time, against the reference simulator."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.mock_engine import Latencies, LoadTest, served, simulated
from jaxserve.mock_engine.settings import MockEngineSettings
from tests.mock_engine.engine_in_virtual_time import Played, machine


@pytest.mark.slow
def test_ttft_and_tpot_of_a_load_test() -> None:
    """Within 5 % at a tenth of the GPU's speed, where the host's own time hardly counts."""
    settings = MockEngineSettings("llama-3.1-8b", "h100-sxm-80gb", speed=0.1)
    load = LoadTest(rate_rps=10.0, requests=40)
    expected, run = simulated(settings, load), served(settings, load)
    print(expected, run)
    if settings.speed * run.late_s > 0.01 * expected.ttft_s:
        pytest.skip(f"the machine is too busy: the client woke {1e3 * run.late_s:.1f} ms late")
    assert run.latencies.ttft_s == pytest.approx(expected.ttft_s, rel=0.05)
    assert run.latencies.tpot_s == pytest.approx(expected.tpot_s, rel=0.05)


@pytest.mark.parametrize("rate_rps", [2.0, 20.0])
def test_latencies_in_virtual_time(rate_rps: float) -> None:
    """The front end delays a request before the engine here and after its first token in the
    reference simulator; means are the same."""
    load = LoadTest(rate_rps, 200)
    engine = machine(max_model_len=2048, kv_blocks=20_000, batch_cap=256, token_budget=2048)
    played = Played(engine, load.draw()).requests
    ttft_s = np.array([request.ttft_s for request in played])
    tpot_s = np.array([request.tpot_s for request in played])
    measured, expected = Latencies.of(ttft_s, tpot_s, load), simulated(engine.settings, load, 0)
    assert measured.ttft_s == pytest.approx(expected.ttft_s, rel=0.05)
    assert measured.tpot_s == pytest.approx(expected.tpot_s, rel=0.05)
