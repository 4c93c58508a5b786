"""The free fit: known factors are found, and it is the cost model that says so."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.live.calibration.fit import (
    ROOFLINE,
    TERMS,
    Fit,
    fit,
    held_out,
    of_load_test,
    of_steps,
)
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from tests.examples_drawn import FEW
from tests.live.calibration.batching import BUDGET, measured_in_virtual_time

PLAN = CalibrationPlan((1, 2, 4, 8, 16, 32), (64, 256, 768), (24, 96))
PLAN_SMALL = CalibrationPlan((1, 4, 16), (64, 256, 768), (24,))
H100 = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))


def linear(**factors: float) -> CostModel:
    """An engine of the terms alone."""
    given_ = dict(zip(TERMS, factors.values(), strict=True))
    return Fit(given_, None, (), 0, 0, 0.0, 0.0, 0.0, 0.0).cost_model("gpu", "model", 1)


positive = st.floats(0.1, 10.0)


@FEW
@given(base=positive, token=positive, sequence=positive, context=positive, pair=positive)
def test_known_factors_are_found_in_steps(
    base: float, token: float, sequence: float, context: float, pair: float
) -> None:
    """Within a percent each, and what is held out is predicted nearly exactly."""
    known = (base * 3e-3, token * 1e-4, sequence * 2e-4, context * 1e-6, pair * 2e-7)
    engine = linear(**dict(zip("abcde", known, strict=True)))
    steps = measured_in_virtual_time(engine, PLAN_SMALL).steps
    assert steps is not None
    found = fit(of_steps(steps))
    assert found.held_out_error < 1e-4
    assert [found.factors[name] for name in TERMS] == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize("steps_told", [True, False])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_an_h100_is_predicted_where_it_was_not_measured(steps_told: bool, noise: float) -> None:
    """Within 4 % by steps and by a load test, the largest loads as well."""
    measured = measured_in_virtual_time(H100, PLAN, steps_told=steps_told, noise=noise)
    sweep = of_load_test(measured.load_test, np.inf, BUDGET)
    found = fit(of_steps(measured.steps) if measured.steps else sweep)
    assert found.held_out_error < 0.04
    assert found.largest_error < 0.04
    assert found.knee_tokens is not None  # the weights' reading hides the first tokens


def test_pauses_of_the_host_do_not_move_the_factors() -> None:
    """Every tenth step takes five times as long."""
    steps = measured_in_virtual_time(linear(a=4e-3, b=1e-4, c=2e-4, d=1e-6, e=1e-8), PLAN).steps
    assert steps is not None
    steps.seconds[::10] *= 5
    found = fit(of_steps(steps))
    assert found.factors["iteration"] == pytest.approx(4e-3, rel=0.05)
    assert found.factors["token"] == pytest.approx(1e-4, rel=0.05)


@given(
    decode=st.integers(0, 64),
    context=st.integers(1, 2000),
    chunk=st.integers(0, 2000),
    prefix=st.integers(0, 1000),
    knee=st.one_of(st.none(), st.floats(8, 2048)),
)
def test_the_cost_model_has_the_fitted_times(
    decode: int, context: int, chunk: int, prefix: int, knee: float | None
) -> None:
    """The sum in the module's docstring, term by term."""
    factors = dict(zip(TERMS, (4e-3, 1e-4, 2e-4, 1e-6, 1e-8), strict=True))
    if knee is not None:
        factors[ROOFLINE] = 5e-5
    cost = Fit(factors, knee, (), 0, 0, 0.0, 0.0, 0.0, 0.0).cost_model("gpu", "model", 1)
    chunks = ((chunk, prefix),) if chunk else ()
    seconds = cost.iteration_s(decode_seqs=decode, kv_tokens=decode * context, chunks=chunks)
    loads = (1, decode + chunk, decode, decode * context, chunk * (prefix + chunk / 2))
    expected = sum(factors[name] * load for name, load in zip(TERMS, loads, strict=True))
    if knee is not None:
        expected += 5e-5 * np.hypot(knee, decode + chunk)
    assert seconds == pytest.approx(expected if decode + chunk else 0.0, rel=1e-9)


@given(load=st.lists(st.floats(0, 1e9), min_size=12, max_size=200))
def test_a_third_is_held_out(load: list[float]) -> None:
    """By the loads alone, the largest tenth among them."""
    out, largest = held_out(np.array(load))
    assert 0.25 * len(load) <= out.sum() <= 0.4 * len(load) + 1
    assert out[largest].all() and largest.any()
    assert np.array(load)[largest].min() >= np.array(load)[~out].max()


def test_too_little_is_refused() -> None:
    """So few loads cannot be checked."""
    measured = measured_in_virtual_time(
        H100, CalibrationPlan((1, 2), (64,), (24, 48)), steps_told=False
    )
    with pytest.raises(InputError, match="4 different loads were measured; at least 12 are needed"):
        fit(of_load_test(measured.load_test, np.inf, BUDGET))


def test_an_engine_without_work_is_refused() -> None:
    """Tokens that cost nothing are no model of an engine."""
    with pytest.raises(InputError, match="tokens take no time"):
        linear(a=4e-3, b=0.0, c=2e-4, d=1e-6, e=1e-8)
