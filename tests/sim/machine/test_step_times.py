"""The file of step times says what the cost model says."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import gpu_names, load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.step_times import step_times
from jaxserve_vllm.engine_control.step_log import StepLoad
from jaxserve_vllm.step_time import read_step_time


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("times")


@given(
    gpu=st.sampled_from(gpu_names()),
    model=st.sampled_from(["llama-3.1-8b", "llama-3.1-70b", "qwen2.5-32b"]),
    tensor_parallel=st.sampled_from([1, 2, 4]),
    tier=st.integers(0, 2),
    sequences=st.integers(0, 256),
    context=st.integers(1, 8192),
    chunks=st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 4096)), max_size=3),
    depth=st.integers(0, 8),
)
def test_the_emulated_device_has_the_times_of_the_cost_model(
    folder: Path,
    gpu: str,
    model: str,
    tensor_parallel: int,
    tier: int,
    sequences: int,
    context: int,
    chunks: list[tuple[int, int]],
    depth: int,
) -> None:
    """For any step of any GPU and model, through the file."""
    if not sequences and not chunks:
        return
    cost = CostModel.of(load_gpu(gpu), load_model(model), tensor_parallel)
    path = folder / "times.json"
    path.write_text(json.dumps(step_times(cost, tier, 2.0)))
    load = StepLoad(
        decode_seqs=sequences,
        decode_tokens=sequences * (depth + 1),
        kv_tokens=sequences * context,
        chunks=len(chunks),
        prompt_tokens=sum(chunk for chunk, _ in chunks),
        pairs=sum(chunk * (prefix + chunk / 2) for chunk, prefix in chunks),
        depth=depth,
    )
    expected_s = cost.iteration_s(
        decode_seqs=sequences,
        kv_tokens=sequences * context,
        chunks=tuple(chunks),
        speculation_depth=depth,
        tier=tier,
    )
    assert read_step_time(path).seconds(load) == pytest.approx(2 * expected_s, rel=1e-12)
