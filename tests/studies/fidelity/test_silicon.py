"""Promises of the end-to-end comparison."""

import numpy as np
import pytest

from jaxserve.sim.machine.cost_json import cost_from_dict, cost_to_dict
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.studies.fidelity.measurements import shared_data
from jaxserve.studies.fidelity.silicon import closed_loop_tpot_s, fit_iteration, silicon_fidelity

COST = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))
SHARED = shared_data()


def _simulated_tpot_s(slots: int, prompt: int, output: int) -> float:
    """TPOT of a closed loop stepped iteration by iteration, one prefill per iteration at most."""
    generated = [1 + slot * output // slots for slot in range(slots)]
    waiting: list[int] = []
    started = [0.0] * slots
    clock, tpot = 0.0, []
    for iteration in range(6 * output):
        decoding = [slot for slot in range(slots) if slot not in waiting]
        chunks = ((prompt, 0),) if waiting else ()
        kv_tokens = sum(prompt + generated[slot] for slot in decoding)
        clock += COST.iteration_s(decode_seqs=len(decoding), kv_tokens=kv_tokens, chunks=chunks)
        for slot in decoding:
            generated[slot] += 1
        if waiting:
            first = waiting.pop(0)
            generated[first], started[first] = 1, clock
        for slot in decoding:
            if generated[slot] >= output:
                if iteration > 3 * output:
                    tpot.append((clock - started[slot]) / (output - 1))
                waiting.append(slot)
    return float(np.mean(tpot))


@pytest.mark.parametrize(
    ("slots", "prompt", "output"), [(8, 1024, 128), (32, 1024, 256), (64, 2048, 256)]
)
def test_closed_loop_formula_is_the_stepped_loop(slots: int, prompt: int, output: int) -> None:
    """The analytic TPOT of a closed loop agrees with stepping the loop through ``iteration_s``."""
    analytic = closed_loop_tpot_s(COST, slots, prompt, output)
    assert float(analytic) == pytest.approx(_simulated_tpot_s(slots, prompt, output), rel=0.03)


def test_fit_recovers_host_and_elementwise() -> None:
    """TPOT computed from known constants gives those constants back."""
    concurrency, prompt = (g.ravel() for g in np.meshgrid([8.0, 32.0, 128.0], [1024.0, 4096.0]))
    output = np.full(concurrency.size, 256.0)
    tpot_s = closed_loop_tpot_s(COST, concurrency, prompt, output)
    start = cost_from_dict(cost_to_dict(COST) | {"host_s": 1e-3, "elementwise_s_per_token": 4e-6})
    fitted = fit_iteration(start, concurrency, prompt, output, tpot_s)
    assert fitted.host_s == pytest.approx(COST.host_s, rel=1e-3)
    assert fitted.elementwise_s_per_token == pytest.approx(COST.elementwise_s_per_token, rel=1e-3)


@pytest.mark.skipif(
    SHARED is None, reason="measured runs are absent; set JAXSERVE_SHARED to their directory"
)
def test_measured_tpot_is_within_the_bar() -> None:
    """Closed-loop TPOT on the H100 is met within 3 % on held-out points."""
    assert SHARED is not None
    (row,) = silicon_fidelity(SHARED)
    assert row.passed and row.measured <= 3.0
