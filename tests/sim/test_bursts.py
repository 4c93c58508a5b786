"""The two-state burst process: its formulas against samples, and fitting it to figures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.bursts import Mmpp, fit_mmpp
from tests.sim.recorded_arrivals import dispersion, gap_cv

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


def test_fit_of_a_gap_cv_beyond_two_states() -> None:
    """Where no two-state process has the gap CV, all three figures are near, none at any cost."""
    fitted = fit_mmpp(2.57, 13.15, 13.19, 71.85)
    assert fitted.rate_low_rps == 0.0 and fitted.mean_rate_rps == pytest.approx(2.57)
    assert fitted.gap_cv() == pytest.approx(13.15, rel=0.1)
    assert fitted.dispersion(1.0) == pytest.approx(13.19, rel=0.1)
    assert fitted.dispersion(10.0) == pytest.approx(71.85, rel=0.1)


def test_fit_to_a_recording() -> None:
    """Fitting a sampled process finds its parameters within sampling error."""
    process = Mmpp(2.0, 12.0, 20.0, 8.0)
    arrival_s = process.sample(300_000.0, np.random.default_rng(11))
    rate_rps = (len(arrival_s) - 1) / (arrival_s[-1] - arrival_s[0])
    figures = gap_cv(arrival_s), dispersion(arrival_s, 1.0), dispersion(arrival_s, 10.0)
    fitted = fit_mmpp(rate_rps, *figures)
    assert fitted.rate_low_rps == pytest.approx(process.rate_low_rps, rel=0.1)
    assert fitted.rate_high_rps == pytest.approx(process.rate_high_rps, rel=0.1)
    assert fitted.dwell_low_s == pytest.approx(process.dwell_low_s, rel=0.15)
    assert fitted.dwell_high_s == pytest.approx(process.dwell_high_s, rel=0.15)


def test_same_generator_same_sample() -> None:
    """A seed gives one recording."""
    process = Mmpp(2.0, 12.0, 20.0, 8.0)
    first = process.sample(100.0, np.random.default_rng(5))
    np.testing.assert_array_equal(first, process.sample(100.0, np.random.default_rng(5)))
    assert len(first) != len(process.sample(100.0, np.random.default_rng(6)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Mmpp(-1.0, 2.0, 1.0, 1.0), "0 <= rate_low_rps <= rate_high_rps"),
        (lambda: Mmpp(3.0, 2.0, 1.0, 1.0), "0 <= rate_low_rps <= rate_high_rps"),
        (lambda: Mmpp(0.0, math.nan, 1.0, 1.0), "0 <= rate_low_rps <= rate_high_rps"),
        (lambda: Mmpp(0.0, 0.0, 1.0, 1.0), "rate_high_rps must be above 0"),
        (lambda: Mmpp(0.0, 1.0, 0.0, 1.0), "must be above 0 and finite"),
        (lambda: fit_mmpp(0.0, 2.0, 2.0, 5.0), "mean_rate_rps must be above 0"),
        (lambda: fit_mmpp(1.0, math.inf, 2.0, 5.0), "gap_cv must be above 0"),
        (lambda: fit_mmpp(1.0, 2.0, 1.0, 1.0), "1 < dispersion_1s < dispersion_10s"),
        (lambda: fit_mmpp(1.0, 2.0, 2.0, 1.5), "1 < dispersion_1s < dispersion_10s"),
        (lambda: fit_mmpp(1.0, 2.0, 2.0, 12.0), "1 < dispersion_1s < dispersion_10s"),
    ],
)
def test_impossible_figures_are_refused(build, message: str) -> None:
    """Figures no burst process has raise one sentence that says what is needed."""
    with pytest.raises(InputError, match=message):
        build()
