"""Times of iterations from lists."""

from __future__ import annotations

import numpy as np
import pytest

from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.machine.tabulated import TabulatedTimer


@pytest.mark.parametrize(
    ("model", "stack"),
    [
        ("llama-3.1-8b", None),
        ("llama-3.1-8b", Stack()),
        ("llama-3.1-8b", Stack("sglang")),
        ("gpt-oss-120b", Stack(formats=("mxfp4", "fp8", "int4"))),
        ("deepseek-v3", Stack("trtllm", attention_data_parallel=True)),
    ],
)
def test_the_times_are_those_of_the_cost_model(model: str, stack: Stack | None) -> None:
    """Of decoding, of prompts, of both, with drafts, and of iterations beyond the lists."""
    cost = CostModel.of(*serve("h100-sxm-80gb", model, stack), 2)
    timer, slower = TabulatedTimer(cost), TabulatedTimer(cost, slowdown=1.5)
    rng = np.random.default_rng(0)
    for most in [*[300] * 200, 2000, 20_000]:
        sequences = int(rng.integers(0, most))
        chunks = tuple(
            (int(rng.integers(1, 900)), int(rng.integers(0, 9000))) for _ in range(rng.integers(4))
        )
        kv_tokens = float(sequences * rng.integers(1, 5000))
        asked = {"decode_seqs": sequences, "kv_tokens": kv_tokens, "chunks": chunks}
        asked["speculation_depth"] = int(rng.integers(9))
        expected = cost.iteration_s(**asked)
        assert timer.iteration_s(**asked) == pytest.approx(expected, rel=1e-9)
        assert slower.iteration_s(**asked) == pytest.approx(1.5 * expected, rel=1e-9)
