"""Promises of the energy and cost model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.fields import Tier
from jaxserve.sim.machine import energy
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import gpu_names, load_gpu
from jaxserve.sim.machine.models import load_model

FP16, INT8, _ = Tier
MODEL = load_model("llama-3.1-8b")


def _power_w(gpu_name: str, batch: int, context: int, prompt: int) -> float:
    """Mean power of an iteration of ``batch`` decodes and one prompt."""
    gpu = load_gpu(gpu_name)
    chunks = ((prompt, 0),) if prompt else ()
    duration_s = CostModel.of(gpu, MODEL).iteration_s(
        decode_seqs=batch, kv_tokens=batch * context, chunks=chunks
    )
    pairs = batch * context + prompt**2 / 2
    flops = energy.iteration_flops(gpu, MODEL, FP16, batch + prompt, batch + len(chunks), pairs)
    traffic = energy.iteration_bytes(gpu, MODEL, FP16, batch * context)
    return energy.energy_j(gpu, duration_s, flops, traffic) / duration_s


@pytest.mark.parametrize("gpu_name", gpu_names())
def test_power_lies_between_idle_and_limit(gpu_name: str) -> None:
    """Decoding draws well above idle, prefilling more, and nothing more than the limit."""
    gpu = load_gpu(gpu_name)
    decode_w, prefill_w = _power_w(gpu_name, 16, 1000, 0), _power_w(gpu_name, 0, 0, 4096)
    assert gpu.idle_w + 0.3 * (gpu.max_w - gpu.idle_w) < decode_w < prefill_w <= gpu.max_w


@given(st.floats(1e-3, 1.0), st.floats(0, 1e16), st.floats(0, 1e13))
def test_energy_is_bounded_and_monotone(duration_s: float, flops: float, traffic: float) -> None:
    """Energy lies between idle and limit and never falls with work."""
    gpu = load_gpu("h100-sxm-80gb")
    joules = energy.energy_j(gpu, duration_s, flops, traffic)
    assert gpu.idle_w * duration_s * (1 - 1e-9) <= joules <= gpu.max_w * duration_s * (1 + 1e-9)
    assert energy.energy_j(gpu, duration_s, 2 * flops + 1e9, traffic) >= joules * (1 - 1e-9)


def test_rejected_drafts_cost_energy() -> None:
    """Verifying more tokens for the same output needs more arithmetic."""
    gpu = load_gpu("h100-sxm-80gb")
    plain = energy.iteration_flops(gpu, MODEL, FP16, 64, 64, 0)
    verified = energy.iteration_flops(gpu, MODEL, FP16, 64 * 5, 64 * 5, 0)
    assert verified == pytest.approx(5 * plain)


def test_int8_halves_the_energy_of_linear_arithmetic() -> None:
    """A format with twice the arithmetic rate counts half in bf16-equivalent FLOP."""
    gpu = load_gpu("a100-sxm-80gb")
    ratio = energy.iteration_flops(gpu, MODEL, FP16, 64, 0, 0) / energy.iteration_flops(
        gpu, MODEL, INT8, 64, 0, 0
    )
    assert ratio == pytest.approx(2.0)


def test_dollars_by_hand() -> None:
    """An hour of one GPU at one kilowatt-hour costs its rent and its electricity."""
    gpu = load_gpu("h100-sxm-80gb")
    expected = gpu.price_usd_per_hour + gpu.electricity_usd_per_kwh
    assert energy.dollars(gpu, 3600.0, 3.6e6) == pytest.approx(expected)
    both = energy.dollars(gpu, np.array([0.0, 3600.0]), np.array([0.0, 3.6e6]))
    np.testing.assert_allclose(both, [0.0, expected])
