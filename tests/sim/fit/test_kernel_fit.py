"""Promises of the fits to kernels: what made the rows is found again."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxserve.sim.fit import kernel_fit
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import CacheFit
from tests.sim.fit.kernel_samples import GPU, MODEL, exact_rows


@pytest.mark.parametrize("kind", ["linear", "decode", "prefill"])
def test_fit_recovers_the_constants_that_made_the_rows(kind: str) -> None:
    """Rows computed from known constants give those constants back from another start."""
    rows, truth = exact_rows(kind), kernel_fit.constants(GPU, kind)
    start = kernel_fit.with_constants(GPU, {name: 1.2 * x for name, x in truth.items()})
    found = kernel_fit.constants(kernel_fit.fit(start, MODEL, kind, [rows]), kind)
    assert found == pytest.approx(truth, rel=1e-3)
    (errors,) = kernel_fit.held_out_errors(start, MODEL, kind, [rows])
    assert np.abs(errors).max() < 1e-3


def test_kv_in_the_cache_is_read_faster() -> None:
    """By kernels that repeat one layer. The fit finds how much, and iterations know nothing of it:
    between two reads of a layer's KV come those of all others."""
    cache = CacheFit(cache_bytes=50e6, bytes_per_s=3 * GPU.bandwidth_bytes_per_s)
    cached = dataclasses.replace(GPU, cache=cache)
    rows = exact_rows("decode", cached)
    kv_bytes = rows.size * rows.length * MODEL.kv_bytes_per_token_layer
    without_s = exact_rows("decode").seconds
    assert (rows.seconds <= without_s).all()
    faster = rows.seconds < 0.9 * without_s
    assert faster.any() and kv_bytes[faster].max() <= cache.cache_bytes < kv_bytes.max()
    start = kernel_fit.with_constants(
        cached, {name: 1.2 * x for name, x in kernel_fit.constants(cached, "decode").items()}
    )
    found = kernel_fit.fit(start, MODEL, "decode", [rows])
    assert found.cache is not None
    assert found.cache.bytes_per_s == pytest.approx(cache.bytes_per_s, rel=1e-3)
    assert "cache.bytes_per_s" not in kernel_fit.constants(GPU, "decode")
    assert CostModel.of(cached, MODEL) == CostModel.of(GPU, MODEL)


def test_elementwise_kernels_find_a_constant_that_the_prior_has_not() -> None:
    """The only constant that may be 0 there begins at some microseconds."""
    truth = {"linear.layer_constant_s": 7e-6, "elementwise_s_per_token": 3e-6}
    rows = exact_rows("elementwise", kernel_fit.with_constants(GPU, truth))
    assert GPU.linear[0].layer_constant_s == 0
    found = kernel_fit.fit(GPU, MODEL, "elementwise", [rows])
    assert kernel_fit.constants(found, "elementwise") == pytest.approx(truth, rel=1e-3)


def test_constants_of_one_kind_leave_the_others() -> None:
    """Names lead to the block that has them."""
    changed = kernel_fit.with_constants(
        GPU, {"linear.p_norm": 3.0, "attention.q_norm": 2.0, "head_flops_efficiency": 0.5}
    )
    assert (changed.linear[0].p_norm, changed.attention.q_norm) == (3.0, 2.0)
    assert changed.head_flops_efficiency == 0.5
    for kind in ("elementwise", "prefill"):
        assert kernel_fit.constants(changed, kind) == kernel_fit.constants(GPU, kind)
    assert changed.linear[1:] == GPU.linear[1:]


def test_held_out_rows_do_not_teach_the_fit() -> None:
    """A corrupted row is judged by constants that never saw it, so its error stays."""
    rows = exact_rows("decode")
    seconds = rows.seconds.copy()
    seconds[20] *= 2
    wrong = dataclasses.replace(rows, seconds=seconds)
    (errors,) = kernel_fit.held_out_errors(GPU, MODEL, "decode", [wrong])
    assert errors[20] == pytest.approx(-0.5, abs=0.02)


def test_errors_are_relative_to_what_is_named() -> None:
    """A kernel that is a tenth of a layer has a tenth of its error."""
    rows = exact_rows("elementwise")
    slow = dataclasses.replace(rows, seconds=rows.seconds / 2)
    alone = kernel_fit.relative_errors(GPU, MODEL, "elementwise", slow)
    whole = dataclasses.replace(slow, whole_s=10 * slow.seconds)
    np.testing.assert_allclose(alone, 1.0)
    np.testing.assert_allclose(
        kernel_fit.relative_errors(GPU, MODEL, "elementwise", whole), alone / 10
    )


def test_what_rows_do_not_show_is_unsure() -> None:
    """A few tokens say nothing of arithmetic."""
    rows = exact_rows("linear")
    few = rows.where(rows.size < 8)
    every = exact_rows("linear").where(rows.length == 64)
    every = dataclasses.replace(every, size=every.size * 32)
    name = "linear.flops_efficiency"
    assert kernel_fit.uncertainty(GPU, MODEL, "linear", few)[name] > 0.5
    assert kernel_fit.uncertainty(GPU, MODEL, "linear", every)[name] < 0.1


@pytest.mark.parametrize("kind", list(kernel_fit.CONSTANTS))
def test_a_group_shares_the_kernels(kind: str) -> None:
    """On two GPUs no kernel takes longer, and all-reduces are none."""
    rows = exact_rows(kind)
    one, two = (kernel_fit.predicted_s(GPU, MODEL, kind, rows, tp) for tp in (1, 2))
    assert (two <= one * (1 + 1e-9)).all() and (two > 0.3 * one).all()
