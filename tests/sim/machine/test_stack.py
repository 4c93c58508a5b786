"""Promises of what serves a model."""

import dataclasses
import json
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.datafiles import load_json
from jaxserve.errors import InputError
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_json import cost_from_dict, cost_to_dict
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import draft_bytes, kv_capacity_tokens, weights_bytes
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import ServedGpu, Stack, engine_names, load_engine, serve
from jaxserve.sim.machine.step_times import step_times

H200, FP8 = "h200-sxm-141gb", ("fp8", "fp8", "fp8")


def _cost(model: str, tensor_parallel: int = 8, **stack: Any) -> CostModel:
    return CostModel.of(*serve(H200, model, Stack(**{"formats": FP8} | stack)), tensor_parallel)


@pytest.mark.parametrize("name", engine_names())
def test_every_engine_and_version_loads(name: str) -> None:
    """Each file has a source, and each of its versions is complete."""
    data = load_json(f"engines/{name}.json")
    assert data["source"]
    for version in (None, *data["versions"]):
        assert 0 < load_engine(name, version).host_s < 0.1


def test_without_a_stack_nothing_changes() -> None:
    """A dense model has the GPU and the sizes of its files."""
    assert serve(H200, "llama-3.1-8b", None) == (load_gpu(H200), load_model("llama-3.1-8b"))


def test_a_model_that_only_fits_in_fp8_is_served_in_fp8() -> None:
    """Tier 0 is what the deployment says: 70B in bf16 fills one H200, in FP8 it has a KV pool."""
    with pytest.raises(InputError, match="does not fit"):
        kv_capacity_tokens(*serve(H200, "llama-3.1-70b", None), 0, 1.0, False)
    served = serve(H200, "llama-3.1-70b", Stack(formats=FP8, kv_format="fp8"))
    assert kv_capacity_tokens(*served, 0, 1.0, False) > 100_000


def test_what_was_fitted_to_dense_models_is_theirs_alone() -> None:
    """A model with experts has the layer constant of the GPU's own file."""
    fitted_s = load_json("engines/sglang.json")["products"]["hopper"]["dense"]["fp8"]
    measured_s = load_json(f"hardware/{H200}.json")["served"]["formats"]["fp8"]
    assert fitted_s["layer_constant_s"] != measured_s["layer_constant_s"]
    for model, expected_s in (("llama-3.1-8b", fitted_s), ("deepseek-v3", measured_s)):
        served, _ = serve(H200, model, Stack("sglang", formats=FP8))
        assert served.linear[0].layer_constant_s == expected_s["layer_constant_s"]


def test_formats_are_tiers_of_their_own() -> None:
    """Weights shrink with the format, and a small batch decodes faster."""
    gpu, model = serve("b200-sxm-180gb", "llama-3.1-70b", Stack(formats=("bf16", "fp8", "fp4")))
    stored = [weights_bytes(model, tier) for tier in range(3)]
    assert stored == sorted(stored, reverse=True)
    cost = CostModel.of(gpu, model, 2)
    times = [float(cost.decode_s(1, 1000, 0, tier)) for tier in range(3)]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", H200, "b200-sxm-180gb", "gb200-nvl72-186gb"])
def test_int8_stands_beside_fp8(gpu: str) -> None:
    """With the times of fp8, which is an assumption and says so; experts have none."""
    stack = Stack.from_dict({"formats": ["bf16", "int8", "fp8"]}, "stack")
    served, _ = serve(gpu, "llama-3.1-8b", stack)
    assert served.linear[1] == served.linear[2] != served.linear[0]
    source = load_json(f"hardware/{gpu}.json")["served"]["formats"]["int8"]["source"]
    assert source.startswith("assumption")
    with pytest.raises(InputError, match=r"format on .* is 'int8'; it must be one of"):
        serve(gpu, "gpt-oss-120b", stack)


@given(
    st.integers(1, 256),
    st.integers(1, 8192),
    st.sampled_from(["llama-3.1-70b", "deepseek-v3"]),
    st.integers(1, 600),
)
def test_iterations_agree_with_their_columns(
    batch: int, context: int, model: str, chunk: int
) -> None:
    """``iteration_s``, which the reference simulator asks, is ``decode_s``, which fills tables;
    prompt tokens take at least what their launches do, where no recorded graph has them."""
    cost = _cost(model)
    alone = cost.iteration_s(decode_seqs=batch, kv_tokens=batch * context)
    np.testing.assert_allclose(alone, cost.decode_s(batch, context))
    assert cost.beyond is not None
    mixed = cost.iteration_s(decode_seqs=batch, kv_tokens=batch * context, chunks=((chunk, 0),))
    captured = batch + chunk <= cost.beyond.captured_tokens
    assert mixed >= max(alone, 0.0 if captured else cost.beyond.eager_s)


def test_an_engine_s_time_for_a_row_is_paid_for_each_sequence() -> None:
    """Sampling and sending are of each sequence, on the host of the whole group."""
    gpu, model = serve(H200, "llama-3.1-8b", Stack())
    assert isinstance(gpu, ServedGpu)
    slow = dataclasses.replace(gpu.engine, sequence_s=gpu.engine.sequence_s + 1e-5)
    costs = [CostModel.of(each, model, 2) for each in (gpu, dataclasses.replace(gpu, engine=slow))]
    for batch in (1, 64):
        fast_s, slow_s = (float(cost.decode_s(batch, 1000)) for cost in costs)
        assert slow_s - fast_s == pytest.approx(batch * 1e-5)


@pytest.mark.parametrize("depth", [0, 3])
def test_drafts_do_not_multiply_the_time_of_a_sequence(depth: int) -> None:
    """However many tokens of it are verified, a sequence is sampled and sent once."""
    gpu, model = serve(H200, "llama-3.1-8b", Stack(engine="sglang"))
    assert isinstance(gpu, ServedGpu)
    slow = dataclasses.replace(gpu.engine, sequence_s=gpu.engine.sequence_s + 1e-5)
    costs = [CostModel.of(each, model, 2) for each in (gpu, dataclasses.replace(gpu, engine=slow))]
    fast_s, slow_s = (
        cost.iteration_s(decode_seqs=64, kv_tokens=64_000, speculation_depth=depth)
        for cost in costs
    )
    assert slow_s - fast_s == pytest.approx(64 * 1e-5)


def test_short_chunks_are_recorded_graphs() -> None:
    """vLLM's least time of an iteration with prompt tokens begins beyond the sizes it captures: a
    prompt whose chunks are as short adds no launches."""
    cost = _cost("llama-3.1-70b", 8)
    assert cost.beyond is not None and cost.beyond.captured_tokens == 512

    def iteration_s(chunk: int) -> float:
        return cost.iteration_s(decode_seqs=12, kv_tokens=12_000, chunks=((chunk, 0),))

    assert iteration_s(500) < cost.beyond.eager_s <= iteration_s(501)
    added_s = [float(cost.prefill_added_s(12, prompt)) for prompt in (500, 501)]
    assert added_s[0] < added_s[1]


@pytest.mark.parametrize(
    ("engine", "asked", "measured"),
    [
        ("vllm", "0.32.0", "0.19.0"),
        ("vllm", "0.16.0rc1", "0.15.1"),
        ("vllm", "0.18.0", None),
        ("sglang", "0.5.23", "0.5.9"),
        ("trtllm", "1.2.0", "1.2.0rc6.post3"),
    ],
)
def test_a_version_that_was_not_measured(engine: str, asked: str, measured: str | None) -> None:
    """It has the constants of the newest measured one before it, and a warning says so."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        times = load_engine(engine, asked)
    assert times == load_engine(engine, measured or asked)
    said = [str(each.message) for each in warned]
    assert bool(said) == (measured is not None)
    assert all(f"are those of {measured}" in each for each in said)


def test_few_tokens_touch_few_experts() -> None:
    """The experts' weights are read as the batch grows; each token alone runs through its own."""
    terms = _cost("deepseek-v3").beyond
    assert terms is not None
    per_token = [float(terms.linear_s(m, 0)) for m in (1, 8, 64, 512)]
    assert per_token == sorted(per_token)
    assert per_token[1] - per_token[0] < 7 * (per_token[0] - terms.expert_constant_s)


def test_pipelines_divide_work_and_not_latency() -> None:
    """Two stages pass a token through all layers, each time with half of the sequences."""
    one, two = _cost("llama-3.1-70b", 4), _cost("llama-3.1-70b", 4, pipeline_parallel=2)
    assert two.decode_s(2, 100) >= one.decode_s(1, 100)
    assert two.decode_s(256, 4000) < one.decode_s(256, 4000)
    _, halves = serve(H200, "llama-3.1-70b", Stack(formats=FP8, pipeline_parallel=2))
    _, whole = serve(H200, "llama-3.1-70b", Stack(formats=FP8))
    assert weights_bytes(halves, 0, 4) < 0.6 * weights_bytes(whole, 0, 4)


def test_cost_models_read_back() -> None:
    """Through JSON, with and without terms of a stack."""
    for model, count in (("gpt-oss-120b", 1), ("deepseek-v3", 8), ("llama-3.1-8b", 2)):
        cost = _cost(model, count, formats=("bf16", "fp8", "int4"))
        assert cost_from_dict(json.loads(json.dumps(cost_to_dict(cost)))) == cost


def test_what_is_not_there_is_refused() -> None:
    """One sentence each."""
    with pytest.raises(InputError, match="served formats"):
        serve("a100-sxm-40gb", "gpt-oss-120b", None)
    with pytest.raises(InputError, match="version of vllm"):
        serve(H200, "llama-3.1-8b", Stack(version="0.0"))
    with pytest.raises(InputError, match="no times without"):
        CostModel.of(load_gpu(H200), load_model("deepseek-v3"))
    with pytest.raises(InputError, match="cannot be written"):
        step_times(_cost("llama-3.1-8b"))
    with pytest.raises(InputError, match="three formats"):
        Stack.from_dict({"formats": ["fp8"]}, "stack")
    assert Stack.from_dict({"formats": list(FP8), "engine": "sglang"}, "stack") == Stack(
        "sglang", formats=FP8
    )


def test_a_model_s_own_drafts_cost_its_layers_and_its_head() -> None:
    """Each drafted token is a pass through the drafting layer and the head; EAGLE's cost is not in
    it, and the weights are those of a layer with all its experts."""
    cost, model = _cost("deepseek-v3"), load_model("deepseek-v3")
    assert isinstance(model, LargeModel) and model.drafting_layers == 1
    one_s, two_s = (float(cost.draft_s(depth, 16, 16_000)) for depth in (1, 2))
    layer_s = (float(cost.linear_s(16)) + float(cost.decode_attention_s(16, 16_000))) / cost.layers
    assert two_s - one_s > float(cost.head_s(16)) + layer_s
    assert float(cost.draft_s(0, 16, 16_000)) == 0.0
    half = dataclasses.replace(model, formats=FP8)
    assert draft_bytes(half, 8) == pytest.approx(weights_bytes(half, 0, 8) / model.layers, rel=0.01)


def test_gpus_that_attend_apart_wait_for_the_fullest() -> None:
    """Nine sequences on eight GPUs take the attention of sixteen, and each GPU reads a whole head;
    a token is sent to no more GPUs than there are."""
    cost, together = _cost("deepseek-v3", attention_data_parallel=True), _cost("deepseek-v3")
    times = [float(cost.decode_attention_s(batch, 1000 * batch)) for batch in (8, 9, 16)]
    assert times[0] < times[1] == pytest.approx(times[2])
    assert float(cost.head_s(1)) > 7 * float(together.head_s(1))
    exchange_s = [_cost("deepseek-v3", n, attention_data_parallel=True) for n in (2, 8)]
    few, many = (each.beyond.collectives[0][2] for each in exchange_s if each.beyond)
    assert few < 4 * many  # eight experts are on two GPUs, not on eight


def test_prompts_of_sglang_pause_its_decoding() -> None:
    """An iteration of both takes the time of one and of the other, but for hidden host time; under
    vLLM they share the weights."""
    work, prompt = {"decode_seqs": 16, "kv_tokens": 16_000}, ((2000, 0),)
    sums = []
    for engine in ("sglang", "vllm"):
        cost = _cost("llama-3.1-8b", 1, engine=engine)
        apart_s = cost.iteration_s(**work)
        apart_s += cost.iteration_s(decode_seqs=0, kv_tokens=0, chunks=prompt) - cost.host_s
        sums.append(cost.iteration_s(**work, chunks=prompt) / apart_s)
        added_s = float(cost.prefill_added_s(16, 2000))
        alone_s = float(cost.prefill_alone_s(2000)) - cost.host_s
        assert (added_s == pytest.approx(alone_s)) == (engine == "sglang")
    assert sums[0] == pytest.approx(1) and sums[1] < 1
