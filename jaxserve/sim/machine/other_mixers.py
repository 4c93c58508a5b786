"""Times of layers beside those of plain attention: with a state, an indexer, or other heads.

    state of a decode step = 2 state bytes b / (BW kvbw)
    state of a prompt      = 6 state numbers c / (F f_attn)
    indexer                = max(index bytes K / (BW kvbw), hi di K / (F f_latent))
    sparse attention       = that of min(K, top b) tokens

b sequences hold K tokens, and a prompt has c new ones. No such kernel was measured: that a state is
read and written once in a step and takes six operations per number and token (decay, outer product
and query; Yang et al., Gated Delta Networks, 2024; Dao and Gu, Mamba-2, 2024), and that kernels
reach the shares of bandwidth and arithmetic of the GPU's attention, is an assumption.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.stack import ServedGpu

_STATE_FLOPS = 6.0
_FP8_RATE = 2.0  # of tensor cores since Hopper, relative to bf16; the indexer's keys are in FP8


@dataclass(frozen=True)
class OtherMixers:
    """Reduced constants of these layers, like those of ``CostModel``; seconds."""

    state_layers: float
    """layers with a state."""
    state_s_per_sequence: float
    """seconds to read and write the state of a sequence in one of them."""
    state_s_per_token: float
    """arithmetic of a prompt's token with the state in one of them."""
    selected_tokens: float
    """tokens of a sequence that sparse attention reads at most; 0 where attention reads all."""
    index_s_per_token: float
    """seconds of the indexer of one layer for each KV token of a decode step."""
    index_s_per_pair: float
    """the same for each (query, key) pair of a prompt."""
    window_kv: float
    """KV of a token in a layer with a window, relative to one without."""
    window_width: float
    """width of the heads in a layer with a window, likewise."""

    @classmethod
    def of(cls, gpu: ServedGpu, model: LargeModel, tensor_parallel: int) -> OtherMixers | None:
        """These terms of ``model`` on ``tensor_parallel`` GPUs; None where it has none of them."""
        linear, sparse = model.linear, model.sparse
        kv_heads, head_dim = model.window_kv
        alike = (kv_heads, head_dim) == (model.kv_heads, model.head_dim)
        if linear is None and sparse is None and alike:
            return None
        attention, peak = gpu.attention, gpu.linear[0].flops_per_s
        bytes_per_s = gpu.bandwidth_bytes_per_s * attention.bandwidth_efficiency
        flops_per_s = peak * attention.prefill_flops_efficiency
        share = 1 / model.pipeline_parallel
        times = dict.fromkeys((field.name for field in dataclasses.fields(cls)), 0.0)
        times["window_width"] = head_dim / model.head_dim
        held = [math.ceil(heads / tensor_parallel) for heads in (kv_heads, model.kv_heads)]
        times["window_kv"] = times["window_width"] * held[0] / held[1]
        if linear is not None:
            split = share / tensor_parallel
            times["state_layers"] = float(linear.layers)
            times["state_s_per_sequence"] = 2 * linear.state_bytes * split / bytes_per_s
            flops = _STATE_FLOPS * linear.state_numbers
            times["state_s_per_token"] = flops * split / flops_per_s
        if sparse is not None:
            # Every GPU of a group has the whole indexer, as vLLM serves it.
            if model.attention_data_parallel:
                share /= tensor_parallel
            flops = 2 * sparse.heads * sparse.head_dim / _FP8_RATE
            times["selected_tokens"] = float(sparse.tokens)
            times["index_s_per_pair"] = flops * share / flops_per_s
            times["index_s_per_token"] = share * max(
                model.index_bytes_per_token_layer / bytes_per_s,
                flops / (peak * gpu.latent_flops_efficiency),
            )
        return cls(**times)

    def read_s(self, s_per_token: float, seqs: Any, kv_tokens: Any) -> Any:
        """Seconds that a layer of attention reads the KV of a decode step, indexer included;
        numbers or arrays.

        Args:
          s_per_token: seconds to read one token's KV.
          seqs: decoding sequences.
          kv_tokens: tokens that they hold, all together.
        """
        if not self.selected_tokens:
            return s_per_token * kv_tokens
        selected = _smaller(kv_tokens, self.selected_tokens * seqs)
        return s_per_token * selected + self.index_s_per_token * kv_tokens

    def pairs_s(self, s_per_pair: float, chunk: Any, pairs: Any) -> Any:
        """Seconds of the (query, key) pairs of a prompt's ``chunk`` in a layer of attention;
        numbers or arrays."""
        if not self.selected_tokens:
            return s_per_pair * pairs
        selected = _smaller(pairs, self.selected_tokens * chunk)
        return s_per_pair * selected + self.index_s_per_pair * pairs


def _smaller(one: Any, other: Any) -> Any:
    """The smaller of two numbers, or of each pair of two arrays."""
    return (one + other - abs(one - other)) / 2
