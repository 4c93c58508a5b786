"""Constants of ``CostModel`` divided out of the files of GPU and model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.hardware import Gpu, LlmModel
from jaxserve.sim.machine.moe_terms import Beyond, by_tier
from jaxserve.sim.machine.stack import ServedGpu

# Architecture that attention, elementwise and draft constants were measured with.
_REFERENCE = LlmModel("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256)


def dense_constants(gpu: Gpu, model: LlmModel, tp: int) -> dict[str, Any]:
    """Constants of a dense model on ``tp`` GPUs."""
    bandwidth, bf16 = gpu.bandwidth_bytes_per_s, gpu.linear[0].flops_per_s
    # Fewer KV heads than GPUs: each GPU keeps a copy of one head.
    kv_heads = math.ceil(model.kv_heads / tp)
    kv_bytes = model.kv_bytes_per_token_layer * kv_heads / model.kv_heads
    attention_width = model.attention_width / tp
    attention, draft = gpu.attention, gpu.draft
    # Measured collectives of the GPU replace a latency and the peak of its link.
    measured = gpu.all_reduce if tp > 1 else None
    ring_bytes_share = 2 * (tp - 1) / tp if measured is None else 0.0
    size = model.draft_parameters / _REFERENCE.draft_parameters
    return {
        "gpu": gpu.name,
        "model": model.name,
        "tensor_parallel": tp,
        "layers": model.layers,
        "host_s": gpu.host_s,
        "linear_constant_s": by_tier(f.layer_constant_s * model.layers for f in gpu.linear),
        "weight_read_s": by_tier(
            model.body_parameters * f.weight_bytes / tp / (bandwidth * f.bandwidth_efficiency)
            for f in gpu.linear
        ),
        "linear_s_per_token": by_tier(
            2 * model.body_parameters / tp / (f.flops_per_s * f.flops_efficiency)
            for f in gpu.linear
        ),
        "linear_p": by_tier(f.p_norm for f in gpu.linear),
        "elementwise_s_per_token": gpu.elementwise_s_per_token
        * model.elementwise_bytes_per_token(tp)
        / _REFERENCE.elementwise_bytes_per_token(),
        "allreduce_s": model.sublayers * gpu.link_latency_s if tp > 1 and measured is None else 0.0,
        "allreduce_s_per_token": model.sublayers
        * ring_bytes_share
        * (2 * model.hidden)
        / gpu.link_bytes_per_s,
        "head_read_s": 2 * model.head_parameters / tp / (bandwidth * gpu.head_bandwidth_efficiency),
        "head_s_per_row": 2 * model.head_parameters / tp / (bf16 * gpu.head_flops_efficiency),
        "head_gather_s_per_row": (tp - 1) / tp * 2 * model.vocab / gpu.link_bytes_per_s,
        "attention_constant_s": attention.constant_s,
        "attention_base_s": attention.base_s,
        "attention_s_per_sequence": attention.per_sequence_s * kv_heads / _REFERENCE.kv_heads,
        "kv_read_s_per_token": kv_bytes / (bandwidth * attention.bandwidth_efficiency),
        "attention_q": attention.q_norm,
        "prefill_constant_s": attention.prefill_constant_s,
        "prefill_s_per_token": attention.prefill_per_token_s
        * attention_width
        / (_REFERENCE.heads * _REFERENCE.head_dim),
        "prefill_s_per_pair": 4 * attention_width / (bf16 * attention.prefill_flops_efficiency),
        # Launch-bound until the weights of a larger draft take longer to read.
        "draft_fixed_s": draft.fixed_s * max(1.0, size / tp),
        "draft_flat_depth": draft.flat_depth,
        "draft_s_per_token": draft.per_token_s * size / tp,
        "draft_s_per_kv_token": draft.per_kv_token_s
        * kv_bytes
        / _REFERENCE.kv_bytes_per_token_layer,
        "beyond": None if measured is None else Beyond.of_links(measured, model, tp),
    }


def served_constants(
    dense: Mapping[str, Any], gpu: ServedGpu, model: LargeModel, tp: int
) -> dict[str, Any]:
    """Constants that differ where a stack serves the model."""
    bandwidth, attention = gpu.bandwidth_bytes_per_s, gpu.attention
    pp, share = model.pipeline_parallel, model.kv_share(tp) * model.pipeline_parallel
    body = model.body_parameters / tp
    if model.attention_data_parallel:
        body += (1 - 1 / tp) * model.mixer_parameters
    # The indexer's keys are read apart, see ``OtherMixers``.
    kv_bytes = model.kv_bytes_per_token_layer - model.index_bytes_per_token_layer
    kv_s = kv_bytes * share / (bandwidth * attention.bandwidth_efficiency)
    heads_s, heads = dense["attention_s_per_sequence"], 1
    gather_s = dense["head_gather_s_per_row"]
    if model.attention_data_parallel:
        heads_s = attention.per_sequence_s * model.kv_heads / tp / _REFERENCE.kv_heads
        heads, gather_s = tp, 0.0  # each GPU has the whole head for sequences of its own
    if model.latent is not None:
        # All heads share one compressed vector: arithmetic, not memory, may bound its reading.
        width = 2 * model.latent.kv_rank + model.latent.rope_dim
        flops = 2 * model.heads / tp * width
        peak = gpu.linear[0].flops_per_s * gpu.latent_flops_efficiency
        kv_s = max(kv_s, flops / peak)
    beyond, own_draft = Beyond.of(gpu, model, tp), {}
    if model.drafting_layers:  # a prompt's tokens pass through them once
        each_s = dense["linear_s_per_token"][0] + dense["elementwise_s_per_token"]
        each_s = model.drafting_layers / model.layers * (each_s / pp + beyond.expert_s_per_token[0])
        own_draft = {"draft_fixed_s": 0.0, "draft_s_per_token": each_s}
    return {
        "host_s": dense["host_s"] + (pp - 1) * gpu.all_reduce.two_shot_s,
        "linear_constant_s": by_tier(
            fit.layer_constant_s * model.layers * model.products_share for fit in gpu.linear
        ),
        "weight_read_s": by_tier(
            body * fit.weight_bytes / (bandwidth * fit.bandwidth_efficiency) for fit in gpu.linear
        ),
        "linear_s_per_token": by_tier(each / pp for each in dense["linear_s_per_token"]),
        "elementwise_s_per_token": dense["elementwise_s_per_token"] / pp,
        "allreduce_s": 0.0,
        "allreduce_s_per_token": 0.0,
        "head_read_s": heads * dense["head_read_s"],
        "head_s_per_row": dense["head_s_per_row"] / pp,
        "head_gather_s_per_row": gather_s / pp,
        "attention_s_per_sequence": heads_s / pp,
        "kv_read_s_per_token": kv_s / pp,
        "prefill_s_per_token": dense["prefill_s_per_token"] / pp,
        "prefill_s_per_pair": dense["prefill_s_per_pair"] / pp,
        "beyond": beyond,
    } | own_draft
