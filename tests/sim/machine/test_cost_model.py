"""Promises of the iteration cost model."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.fields import Tier
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.sim.machine.cost_json import cost_from_dict, cost_to_dict
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import gpu_names, load_gpu
from jaxserve.sim.machine.models import load_model

FP16, INT8, INT4 = Tier
MODEL = load_model("llama-3.1-8b")
COSTS = {name: CostModel.of(load_gpu(name), MODEL) for name in gpu_names()}
H100, A100 = COSTS["h100-sxm-80gb"], COSTS["a100-sxm-80gb"]

costs = st.sampled_from(list(COSTS.values()))
batches = st.integers(1, 512)
contexts = st.integers(1, 16384)
depths = st.integers(0, 8)
tiers = st.integers(0, 2)
prompts = st.integers(1, 8192)


def test_equation_by_hand() -> None:
    """A mixed verify iteration equals the documented equation, written out once more."""
    gpu = load_gpu("h100-sxm-80gb")
    bandwidth, flops, fit = 3.35e12, 989e12, gpu.linear[0]
    attention, draft = gpu.attention, gpu.draft
    seqs, kv, depth, chunk, prefix = 48, 60_000, 3, 512, 1024
    rows = seqs * (depth + 1)
    tokens = rows + chunk
    body, head = 6_979_321_856, 525_336_576
    expected = gpu.host_s + gpu.elementwise_s_per_token * tokens
    expected += (
        (2 * body / (bandwidth * fit.bandwidth_efficiency)) ** fit.p_norm
        + (2 * tokens * body / (flops * fit.flops_efficiency)) ** fit.p_norm
    ) ** (1 / fit.p_norm)
    expected += max(2 * head / (0.8 * bandwidth), 2 * (rows + 1) * head / (0.6 * flops))
    q = attention.q_norm
    read_s = 4096 * kv / (bandwidth * attention.bandwidth_efficiency)
    kernel_s = ((attention.per_sequence_s * seqs) ** q + read_s**q) ** (1 / q)
    expected += 32 * (attention.constant_s + kernel_s)
    pairs = chunk * prefix + chunk**2 / 2
    expected += 32 * (
        attention.prefill_constant_s
        + attention.prefill_per_token_s * chunk
        + 4 * 4096 * pairs / (flops * attention.prefill_flops_efficiency)
    )
    expected += draft.fixed_s + draft.per_token_s * tokens + draft.per_kv_token_s * kv
    actual = H100.iteration_s(
        decode_seqs=seqs, kv_tokens=kv, chunks=((chunk, prefix),), speculation_depth=depth
    )
    assert actual == pytest.approx(expected, rel=1e-12)


@given(costs, batches, contexts, depths, tiers)
def test_vectorised_decode_is_the_scalar_iteration(
    cost: CostModel, batch: int, context: int, depth: int, tier: int
) -> None:
    """``decode_s`` and ``iteration_s`` are the same function of the same constants."""
    scalar = cost.iteration_s(
        decode_seqs=batch, kv_tokens=batch * context, speculation_depth=depth, tier=tier
    )
    vectorised = cost.decode_s(np.array([batch]), np.array([context]), depth, tier)
    assert vectorised[0] == pytest.approx(scalar, rel=1e-12)


@given(
    costs,
    st.integers(0, 512),
    prompts,
    depths,
    tiers,
    st.sampled_from([512, 2048, 8192]),
)
def test_prefill_added_is_the_sum_over_chunks(
    cost: CostModel, batch: int, prompt: int, depth: int, tier: int, budget: int
) -> None:
    """``prefill_added_s`` equals chunking the prompt through ``iteration_s`` less the bare
    decode."""
    kv_tokens = batch * 700
    bare_s = cost.iteration_s(
        decode_seqs=batch, kv_tokens=kv_tokens, speculation_depth=depth, tier=tier
    )
    chunk_limit = max(budget - batch * (depth + 1), budget // 8)
    done, added_s = 0, 0.0
    while done < prompt:
        chunk = min(chunk_limit, prompt - done)
        added_s += cost.iteration_s(
            decode_seqs=batch,
            kv_tokens=kv_tokens,
            chunks=((chunk, done),),
            speculation_depth=depth,
            tier=tier,
        )
        added_s -= bare_s
        done += chunk
    expected = cost.prefill_added_s(batch, prompt, depth, tier, budget)
    assert float(expected) == pytest.approx(added_s, rel=1e-9)


@given(costs, prompts, tiers)
def test_prefill_alone_is_prefill_added_to_nothing(cost: CostModel, prompt: int, tier: int) -> None:
    """An idle engine's prefill is its chunks' iterations; a prompt of no tokens takes no time."""
    alone_s = cost.prefill_alone_s(prompt, tier, 2048)
    first = min(prompt, 2048)
    first_s = cost.iteration_s(decode_seqs=0, kv_tokens=0, chunks=((first, 0),), tier=tier)
    assert alone_s == pytest.approx(first_s) if prompt <= 2048 else alone_s > first_s
    assert cost.prefill_alone_s(0, tier, 2048) == 0.0


def test_no_work_takes_no_time() -> None:
    """An iteration without sequences and chunks is not run."""
    assert H100.iteration_s(decode_seqs=0, kv_tokens=0, speculation_depth=4) == 0.0
    assert H100.decode_s(0, 1000, 2) == 0.0
    assert H100.draft_s(0, 64, 1000) == 0.0
    assert H100.decode_attention_s(0, 0) == 0.0


@given(costs, batches, contexts, depths, tiers, prompts)
def test_more_work_takes_more_time(
    cost: CostModel, batch: int, context: int, depth: int, tier: int, prompt: int
) -> None:
    """Another sequence, KV token, drafted token or prompt token never makes an iteration faster."""

    def time_s(seqs: int, kv: int, drafted: int, chunk: int) -> float:
        chunks = ((chunk, 100),) if chunk else ()
        return cost.iteration_s(
            decode_seqs=seqs, kv_tokens=kv, chunks=chunks, speculation_depth=drafted, tier=tier
        )

    kv = batch * context
    base_s = time_s(batch, kv, depth, prompt)
    assert math.isfinite(base_s) and base_s > 0
    assert time_s(batch + 1, kv, depth, prompt) > base_s
    assert time_s(batch, kv + 1000, depth, prompt) > base_s
    assert time_s(batch, kv, depth + 1, prompt) > base_s
    assert time_s(batch, kv, depth, prompt + 1) > base_s
    assert time_s(batch, kv, depth, 0) < base_s


@given(costs, st.integers(1, 511), contexts, depths, tiers)
def test_batching_decodes_pays(
    cost: CostModel, batch: int, context: int, depth: int, tier: int
) -> None:
    """Two batches in one iteration are faster than one after the other."""
    together_s = cost.decode_s(batch + 1, context, depth, tier)
    apart_s = cost.decode_s(batch, context, depth, tier) + cost.decode_s(1, context, depth, tier)
    assert together_s < apart_s


def _linear_s(cost: CostModel, tokens: np.ndarray, tier: int) -> np.ndarray:
    """Linear layers alone, as they were measured: without the elementwise kernels."""
    return dataclasses.replace(cost, elementwise_s_per_token=0.0).linear_s(tokens, tier)


@pytest.mark.parametrize(
    ("tier", "measured"),
    [(INT8, (1.82, 1.73, 1.48, 1.48, 1.86)), (INT4, (2.19, 1.64, 1.06, 0.90, 0.96))],
)
def test_a100_quantisation_speedups(tier: int, measured: tuple[float, ...]) -> None:
    """A100 speed-ups over bf16 at 1, 32, 128, 256, 2048 tokens are the measured ones within 10 %.

    The smooth fit misses tile steps of single token counts by that much.
    """
    tokens = np.array([1, 32, 128, 256, 2048])
    speedup = _linear_s(A100, tokens, FP16) / _linear_s(A100, tokens, tier)
    np.testing.assert_allclose(speedup, measured, rtol=0.10)


@given(st.sampled_from(list(COSTS)), st.integers(256, 8192))
def test_int4_loses_throughput_at_large_batches(name: str, tokens: int) -> None:
    """Weight-only INT4 is faster than bf16 at one token and slower from 256 tokens on; from 264 on
    the L40S, whose memory is the slowest beside its arithmetic."""
    cost, first = COSTS[name], 264 if name == "l40s-48gb" else 256
    one, many = np.array([1]), np.array([max(tokens, first)])
    assert _linear_s(cost, one, INT4) < _linear_s(cost, one, FP16)
    assert _linear_s(cost, many, INT4) > _linear_s(cost, many, FP16)


@given(costs, st.integers(1, 8192))
def test_int8_is_always_faster_than_bf16(cost: CostModel, tokens: int) -> None:
    """W8A8 halves both the weight stream and the arithmetic, so its linear layers always win."""
    assert _linear_s(cost, np.array([tokens]), INT8) < _linear_s(cost, np.array([tokens]), FP16)


def _best_depth(batch: int, context: int) -> int:
    """Depth with the most tokens per second."""
    depth = np.arange(9)
    return int(np.argmax(tokens_per_step("sharegpt/eagle") / H100.decode_s(batch, context, depth)))


def test_best_speculation_depth_falls_with_batch() -> None:
    """On an H100 the best depth is 5 for one sequence, 3 for 128 of 2000 tokens, 1 for 512."""
    assert _best_depth(1, 500) == 5
    assert _best_depth(128, 2000) == 3
    assert _best_depth(512, 500) == 1
    best = [_best_depth(2**power, 500) for power in range(10)]
    assert best == sorted(best, reverse=True)


def test_speculation_loses_where_compute_is_spent() -> None:
    """At batch 512 deep speculation emits fewer tokens per second than none."""
    rate = tokens_per_step("sharegpt/eagle") / H100.decode_s(512, 500, np.arange(9))
    assert rate[8] < 0.7 * rate[0]


@given(st.sampled_from([2, 4, 8]), st.sampled_from(gpu_names()), batches)
def test_tensor_parallelism_divides_work_and_pays_for_links(
    group: int, gpu_name: str, batch: int
) -> None:
    """A group is faster than one GPU in weights and arithmetic, but never by its full size."""
    model, gpu = load_model("llama-3.1-70b"), load_gpu(gpu_name)
    one, many = CostModel.of(gpu, model), CostModel.of(gpu, model, group)
    assert many.weight_read_s[0] == pytest.approx(one.weight_read_s[0] / group)
    assert many.linear_s_per_token[0] == pytest.approx(one.linear_s_per_token[0] / group)
    assert one.allreduce_s == one.allreduce_s_per_token == one.head_gather_s_per_row == 0.0
    if gpu.all_reduce is None:
        assert many.allreduce_s > 0 and many.allreduce_s_per_token > 0
    else:
        assert many.beyond is not None and float(many.beyond.linear_s(batch, 0)) > 0
    assert one.beyond is None
    assert float(many.decode_s(batch, 1000)) > float(one.decode_s(batch, 1000)) / group


def test_all_reduce_bytes() -> None:
    """Two ring all-reduces per layer move 2 (n - 1) / n of a bf16 hidden vector per token each."""
    gpu, model = load_gpu("a100-sxm-80gb"), load_model("llama-3.1-70b")
    cost = CostModel.of(gpu, model, 4)
    expected = 80 * 2 * (2 * 3 / 4) * (8192 * 2) / gpu.link_bytes_per_s
    assert cost.allreduce_s_per_token == pytest.approx(expected)


@pytest.mark.parametrize("tokens", [1, 16, 300, 2048])
def test_measured_collectives_are_used_without_a_stack(tokens: int) -> None:
    """A group of GPUs whose all-reduce was measured pays that, not a latency and a link's peak."""
    gpu, model = load_gpu("h100-sxm-80gb"), load_model("llama-3.1-70b")
    assert gpu.all_reduce is not None
    cost = CostModel.of(gpu, model, 4)
    without = dataclasses.replace(cost, beyond=None)
    paid_s = cost.linear_s(tokens) - without.linear_s(tokens)
    expected_s = 2 * 80 * gpu.all_reduce.seconds(4, tokens * 8192 * 2)
    assert float(paid_s) == pytest.approx(expected_s)


def test_nothing_was_measured_of_another_link(tmp_path: Path) -> None:
    """A GPU of the user's own that names its link has that, not the collectives of its base."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"base": "h100-sxm-80gb", "link": {"link_bytes_per_s": 2.5e10}}))
    gpu = load_gpu(str(path))
    assert gpu.all_reduce is None
    assert CostModel.of(gpu, load_model("llama-3.1-70b"), 4).allreduce_s_per_token > 0


def test_more_gpus_than_kv_heads_keep_copies() -> None:
    """A GPU of a group larger than the KV heads still reads one whole KV head."""
    gpu, model = load_gpu("gb200-nvl72-186gb"), load_model("llama-3.1-70b")
    assert (
        CostModel.of(gpu, model, 16).kv_read_s_per_token
        == CostModel.of(gpu, model, 8).kv_read_s_per_token
    )


@pytest.mark.parametrize("group", [0, 3, -2])
def test_impossible_group_is_refused(group: int) -> None:
    """A tensor-parallel size that does not divide the heads raises with the reason."""
    with pytest.raises(
        InputError, match=f"tensor_parallel is {group}; it must be a positive divisor"
    ):
        CostModel.of(load_gpu("h100-sxm-80gb"), MODEL, group)


@pytest.mark.parametrize(("gpu", "most"), [("h100-sxm-80gb", 8), ("gb200-nvl72-186gb", 72)])
def test_more_gpus_than_the_links_join_are_refused(gpu: str, most: int) -> None:
    """Of an all-reduce beyond a node, or beyond an NVL72, nothing was measured."""
    model = dataclasses.replace(load_model("llama-3.1-70b"), heads=144, kv_heads=144)
    CostModel.of(load_gpu(gpu), model, most)
    with pytest.raises(InputError, match=f"tensor_parallel is {2 * most}; it must be at most"):
        CostModel.of(load_gpu(gpu), model, 2 * most)


@given(costs)
def test_dict_round_trip_through_json(cost: CostModel) -> None:
    """A cost model written into a table's metadata is read back exactly."""
    assert cost_from_dict(json.loads(json.dumps(cost_to_dict(cost)))) == cost


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("host_s", -1.0),
        ("host_s", math.nan),
        ("attention_q", [1.0, 2.0, 3.0]),
        ("linear_p", 2.0),
        ("linear_p", [2.0, 0.0, 1.0]),
        ("layers", 0),
        ("weight_read_s", [1.0, math.inf, 1.0]),
        ("weight_read_s", [1.0, 2.0]),
        ("layers", "many"),
    ],
)
def test_bad_dict_is_named(field: str, value: object) -> None:
    """A stored cost model with a bad field raises with the field's name."""
    with pytest.raises(InputError, match=f"cost_model: {field} is"):
        cost_from_dict(cost_to_dict(H100) | {field: value})


def test_missing_and_unknown_fields_are_named() -> None:
    """A stored cost model with other fields than expected raises with the name of one."""
    data = cost_to_dict(H100)
    del data["host_s"]
    with pytest.raises(InputError, match="cost_model: host_s is missing"):
        cost_from_dict(data)
    with pytest.raises(InputError, match="cost_model: field 'hots_s' is unknown"):
        cost_from_dict(data | {"hots_s": 1.0})
