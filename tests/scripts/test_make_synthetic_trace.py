"""The burst process of the synthetic trace: formulas against samples, and fitting it to figures."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.datafiles import data_dir
from scripts.make_synthetic_trace import Mmpp, fit_mmpp, synthetic_trace
from tests.sim.traffic.recorded_arrivals import dispersion, gap_cv

processes = st.builds(
    lambda low, step, dwell_low, dwell_high: Mmpp(low, low + step, dwell_low, dwell_high),
    st.floats(0.0, 20.0),
    st.floats(1.0, 50.0),
    st.floats(0.5, 100.0),
    st.floats(0.5, 100.0),
)


@pytest.mark.parametrize("process", [Mmpp(3.0, 9.0, 10.0, 4.0), Mmpp(0.0, 15.0, 30.0, 6.0)])
def test_formulas_agree_with_samples(process: Mmpp) -> None:
    """Mean rate, gap CV and dispersion of a long sample are the ones computed."""
    arrival_s = process.sample(1_000_000.0, np.random.default_rng(3))
    assert (np.diff(arrival_s) >= 0.0).all() and arrival_s[-1] < 1_000_000.0
    assert len(arrival_s) / 1_000_000.0 == pytest.approx(process.mean_rate_rps, rel=0.02)
    assert gap_cv(arrival_s) == pytest.approx(process.gap_cv(), rel=0.03)
    for window_s in (0.25, 1.0, 10.0, 60.0):
        expected = process.dispersion(window_s)
        assert dispersion(arrival_s, window_s) == pytest.approx(expected, rel=0.06)


def test_equal_rates_are_poisson() -> None:
    """Without a difference between the states gap CV and dispersion are 1."""
    process = Mmpp(5.0, 5.0, 10.0, 4.0)
    assert process.gap_cv() == pytest.approx(1.0) and process.dispersion(10.0) == 1.0
    arrival_s = np.cumsum(np.random.default_rng(0).exponential(0.2, 100_000))
    assert gap_cv(arrival_s) == pytest.approx(1.0, rel=0.02)
    assert dispersion(arrival_s, 1.0) == pytest.approx(1.0, rel=0.03)


@given(processes)
def test_bursts_only_add_variance(process: Mmpp) -> None:
    """Gap CV is at least Poisson's, dispersion grows with the window."""
    assert process.gap_cv() >= 1.0 - 1e-9
    figures = [process.dispersion(window_s) for window_s in (0.1, 1.0, 10.0, 100.0, 1000.0)]
    assert figures[0] >= 1.0 and figures == sorted(figures)


@given(processes)
def test_fit_returns_the_process_behind_the_figures(process: Mmpp) -> None:
    """Figures of an MMPP lead back to figures alike, to the process itself where it is unique."""
    wanted = process.gap_cv(), process.dispersion(1.0), process.dispersion(10.0)
    fitted = fit_mmpp(process.mean_rate_rps, *wanted)
    assert fitted.mean_rate_rps == pytest.approx(process.mean_rate_rps, rel=1e-6)
    assert fitted.dispersion(1.0) == pytest.approx(wanted[1], rel=1e-2)
    assert fitted.dispersion(10.0) == pytest.approx(wanted[2], rel=1e-2)
    # Bursts rarer than the fit's rarest have almost Poisson gaps.
    assert fitted.gap_cv() == pytest.approx(wanted[0], rel=0.1)


def test_shipped_trace_is_what_its_script_makes() -> None:
    """The packaged synthetic trace can be made again, and nobody edited it by hand."""
    shipped = (data_dir() / "traces" / "synthetic_conversation.csv").read_text()
    made_rows, shipped_rows = synthetic_trace().splitlines(), shipped.splitlines()
    assert len(made_rows) == len(shipped_rows)
    # Another machine's last digit may differ: times in 100 ns are left out of the comparison.
    assert [r.split(",")[1:] for r in made_rows] == [r.split(",")[1:] for r in shipped_rows]
