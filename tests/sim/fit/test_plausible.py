"""Load tests that cannot be what their columns say are refused, and say why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.fit.plausible import check_plausible
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.closed_loop import ClosedLoop, closed_loop

_POINTS = np.array(
    [(c, p, o) for c in (1, 4, 16, 64, 128) for p, o in ((128, 256), (1024, 128), (4096, 512))]
).T.astype(float)


def _predict(gpu: str) -> Callable[[Sweep], ClosedLoop]:
    cost = CostModel.of(load_gpu(gpu), load_model("llama-3.1-8b"))
    return lambda rows: closed_loop(
        cost, rows.concurrency, rows.prompt_tokens, rows.output_tokens, kv_tokens=4e5
    )


def _measured(gpu: str = "a100-sxm-80gb") -> Sweep:
    rows = Sweep(*_POINTS, tpot_s=np.ones(15), ttft_s=None)
    loop = _predict(gpu)(rows)
    return dataclasses.replace(rows, tpot_s=loop.tpot_s, ttft_s=loop.ttft_p50_s)


@pytest.mark.parametrize("prior", ["a100-sxm-80gb", "h100-sxm-80gb", "l40s-48gb"])
@pytest.mark.parametrize("ttft", [True, False])
def test_a_load_test_of_another_gpu_passes(prior: str, ttft: bool) -> None:
    """So do rows with noise."""
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal(15))
    sweep = _measured()
    noisy = dataclasses.replace(
        sweep, tpot_s=sweep.tpot_s * noise, ttft_s=sweep.ttft_s if ttft else None
    )
    check_plausible(noisy, _predict(prior))


def _with(**changes: Callable[[Sweep], np.ndarray]) -> Callable[[Sweep], Sweep]:
    return lambda sweep: dataclasses.replace(
        sweep, **{name: change(sweep) for name, change in changes.items()}
    )


def _one_row_in_seconds(sweep: Sweep) -> np.ndarray:
    return np.where(np.arange(15) == 6, sweep.tpot_s / 1e3, sweep.tpot_s)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _with(tpot_s=lambda s: s.tpot_s / 1e3, ttft_s=lambda s: s.ttft_s / 1e3),
            "TPOT is 0.00[0-9]+ times what",
        ),
        (
            _with(tpot_s=lambda s: s.tpot_s * 1e3, ttft_s=lambda s: s.ttft_s * 1e3),
            "TPOT is [0-9.]+e[+]03 times what",
        ),
        (_with(ttft_s=lambda s: s.ttft_s / 1e3), "TTFT is far below TPOT"),
        (_with(tpot_s=_one_row_in_seconds), "row 7 has 0.00[0-9]+ times the TPOT that is expected"),
        (_with(tpot_s=lambda s: s.ttft_s, ttft_s=lambda s: s.tpot_s), "TTFT is far below TPOT"),
        (
            _with(prompt_tokens=lambda s: s.output_tokens, output_tokens=lambda s: s.prompt_tokens),
            "with prompt length and output length swapped",
        ),
        (
            _with(concurrency=lambda s: s.prompt_tokens, prompt_tokens=lambda s: s.concurrency),
            "with concurrency and prompt length swapped",
        ),
        (lambda s: s.select(np.zeros(15, int)), "have 1 different settings; at least 8"),
        (_with(concurrency=lambda s: np.ones(15)), "different settings"),
        (
            _with(concurrency=lambda s: np.ones(15), prompt_tokens=lambda s: 64.0 + np.arange(15)),
            "have 1 different concurrencies; at least 3",
        ),
    ],
)
def test_what_is_refused(change: Callable[[Sweep], Sweep], message: str) -> None:
    """Units, columns, and rows that are all alike."""
    with pytest.raises(InputError, match=message):
        check_plausible(change(_measured()), _predict("h100-sxm-80gb"))
