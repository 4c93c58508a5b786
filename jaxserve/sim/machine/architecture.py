"""Models beyond the dense one: experts, kinds of attention, states, and their formats.

``data/models/<name>.json`` says which of them a model has; ``LargeModel`` is also the form in which
a dense model is served where a deployment names its number formats.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.sim.machine.formats import DEFAULT_FORMATS, STORED_BYTES, rest_of
from jaxserve.sim.machine.hardware import LlmModel


@dataclass(frozen=True)
class Experts:
    """Mixture of experts that replaces the MLP of most layers."""

    count: int
    """experts of a layer, of which a router picks some for each token."""
    per_token: int
    """experts that a token runs through."""
    intermediate: int
    """width of one expert."""
    shared_intermediate: int = 0
    """width of what every token runs through beside them."""
    dense_layers: int = 0
    """first layers, which have the dense MLP instead."""


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: one compressed vector per token instead of keys and values."""

    kv_rank: int
    """width that keys and values are compressed to."""
    rope_dim: int
    """further width of a key, which carries the position and is shared by the heads."""
    value_dim: int
    """width of one head's value."""
    q_rank: int = 0
    """width that queries are compressed to; 0 where they are not."""


@dataclass(frozen=True)
class SlidingWindow:
    """Layers that attend to the last tokens only, and keep only their KV."""

    layers: int
    """number of the model's layers with a sliding window."""
    tokens: int
    """tokens of context that these layers read and keep."""
    kv_heads: int = 0
    """their key and value heads; 0 where they have those of the others."""
    head_dim: int = 0
    """width of one of their heads; 0 likewise."""


@dataclass(frozen=True)
class LinearAttention:
    """Layers of linear attention or of a state space: each sequence has a state of constant size in
    place of KV."""

    layers: int
    """number of the model's layers with a state."""
    parameters: int
    """matrix parameters of one such layer, in place of those of attention."""
    state_numbers: int
    """numbers of one sequence's recurrent state in one layer."""
    state_bytes: int
    """bytes that one sequence keeps in one layer: recurrent state and that of the convolution."""


@dataclass(frozen=True)
class SparseAttention:
    """An indexer in every layer, which selects the tokens that attention reads."""

    tokens: int
    """tokens that attention reads at most."""
    heads: int
    """heads of the indexer."""
    head_dim: int
    """width of one of them; they share one key of this width, in FP8."""


@dataclass(frozen=True)
class OwnAttention:
    """Grouped-query attention with other matrices than q, k, v and o."""

    matrices: int
    """matrices as wide as all query heads: 2 for q and o, 3 with a gate of the output."""
    kv_matrices: int
    """matrices as wide as all KV heads: 2 for k and v, 1 where values are keys."""


@dataclass(frozen=True)
class PlainMlp:
    """MLPs that have no gate, or are missing from some layers."""

    matrices: int
    """matrices of an MLP or an expert: 3 with a gate, 2 without."""
    missing: int = 0
    """layers without an MLP."""


@dataclass(frozen=True)
class LargeModel(LlmModel):
    """A model with any of these, in the formats and the layout in which a deployment serves it."""

    experts: Experts | None = None
    """None for a dense model."""
    latent: LatentAttention | None = None
    """shapes of latent attention; None for grouped-query attention."""
    window: SlidingWindow | None = None
    """layers with a window; None without."""
    linear: LinearAttention | None = None
    """layers with a state; None without."""
    sparse: SparseAttention | None = None
    """the indexer of latent attention; None where attention reads all tokens."""
    attention: OwnAttention | None = None
    """None for the usual four matrices."""
    mlp: PlainMlp | None = None
    """None where every layer has an MLP with a gate."""
    drafting_layers: int = 0
    """layers of multi-token prediction, which draft in place of a draft model; 0 without."""
    formats: tuple[str, str, str] = DEFAULT_FORMATS
    """number format of the weights in tiers 0, 1 and 2."""
    kv_format: str = "bf16"
    """number format of the KV cache."""
    pipeline_parallel: int = 1
    """groups of GPUs that share the layers among them."""
    attention_data_parallel: bool = False
    """each GPU of a group attends for sequences of its own, with all of the attention's weights."""
    expert_parallel: bool = False
    """each GPU of a group has some experts whole, as it has where it attends apart."""

    @property
    def attention_parameters(self) -> int:
        """Matrix parameters of one layer's attention."""
        if self.attention is not None:
            queries = self.attention.matrices * self.heads
            width = self.head_dim * (queries + self.attention.kv_matrices * self.kv_heads)
            return self.hidden * width
        if self.latent is None:
            return super().attention_parameters
        latent = self.latent
        width = self.heads * (self.head_dim + latent.rope_dim)
        queries = latent.q_rank * (self.hidden + width) if latent.q_rank else self.hidden * width
        keys = self.hidden * (latent.kv_rank + latent.rope_dim)
        values = latent.kv_rank * self.heads * (self.head_dim + latent.value_dim)
        index = 0
        if self.sparse is not None:
            each = self.sparse.heads * self.sparse.head_dim
            index = latent.q_rank * each + self.hidden * (self.sparse.head_dim + self.sparse.heads)
        return queries + keys + values + self.heads * latent.value_dim * self.hidden + index

    @property
    def mixer_parameters(self) -> int:
        """Matrix parameters of attention, and of what stands in its place, in all layers."""
        total = self.kv_layers * self.attention_parameters
        if self.linear is not None:
            total += self.linear.layers * self.linear.parameters
        if self.window is not None:
            kv_heads, head_dim = self.window_kv
            each = self.attention_parameters
            if (kv_heads, head_dim) != (self.kv_heads, self.head_dim):
                each = self.hidden * head_dim * (2 * self.heads + 2 * kv_heads)
            total += self.window.layers * each
        return total

    @property
    def window_kv(self) -> tuple[int, int]:
        """KV heads of layers with a window, and the width of a head."""
        window = self.window
        own = (window.kv_heads, window.head_dim) if window else (0, 0)
        return own[0] or self.kv_heads, own[1] or self.head_dim

    @property
    def attention_width(self) -> float:
        """Width of all heads, the mean of keys and values, as prefill computes them."""
        if self.latent is None:
            return super().attention_width
        return self.heads * (self.head_dim + self.latent.rope_dim + self.latent.value_dim) / 2

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.mlp_layers - self.experts.dense_layers if self.experts else 0

    @property
    def mlp_layers(self) -> int:
        """Layers with an MLP or experts."""
        return self.layers - (self.mlp.missing if self.mlp else 0)

    @property
    def mlp_matrices(self) -> int:
        """Matrices of an MLP or an expert."""
        return self.mlp.matrices if self.mlp else 3

    @property
    def sublayers(self) -> int:
        """Mixers and MLPs, each of which ends in an all-reduce."""
        return self.layers + self.mlp_layers

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts of all layers."""
        if self.experts is None:
            return 0
        each = self.mlp_matrices * self.hidden * self.experts.intermediate
        return self.expert_layers * self.experts.count * each

    @property
    def mlp_parameters(self) -> int:
        """Parameters, outside of the routed experts, of what follows attention in all layers."""
        if self.experts is None:
            return self.mlp_layers * self.mlp_matrices * self.hidden * self.intermediate
        dense = self.experts.dense_layers * self.intermediate
        shared = self.expert_layers * self.experts.shared_intermediate
        router = self.expert_layers * self.hidden * self.experts.count
        return self.mlp_matrices * self.hidden * (dense + shared) + router

    @property
    def products_share(self) -> float:
        """Matrix products of a layer outside of the routed experts, relative to a dense one's
        four: two more compress and expand what latent attention works on, and without a shared
        expert two are missing."""
        attention = 4 if self.latent else 2
        mlp = 0 if self.experts and not self.experts.shared_intermediate else 2
        return (attention + mlp) / 4

    @property
    def layer_parameters(self) -> int:
        """Mean matrix parameters of a layer outside of the routed experts."""
        return self.body_parameters // self.layers

    @property
    def body_parameters(self) -> int:
        """Matrix parameters of all layers outside of the routed experts."""
        return self.mixer_parameters + self.mlp_parameters

    @property
    def active_parameters(self) -> float:
        """Parameters that one token is multiplied with, without embedding and head."""
        if self.experts is None:
            return self.body_parameters
        chosen = self.experts.per_token / self.experts.count
        return self.body_parameters + self.expert_parameters * chosen

    @property
    def body_stored_bytes(self) -> tuple[float, float, float]:
        """Bytes per body parameter in tiers 0, 1 and 2."""
        first, second, third = (
            STORED_BYTES[rest_of(name) if self.experts else name] for name in self.formats
        )
        return first, second, third

    @property
    def expert_stored_bytes(self) -> tuple[float, float, float]:
        """Bytes per parameter of a routed expert in tiers 0, 1 and 2."""
        first, second, third = (STORED_BYTES[name] for name in self.formats)
        return first, second, third

    @property
    def draft_parameters(self) -> int:
        """Parameters of an EAGLE draft: one dense layer of the parameters that a token uses, and
        the fusion of two vectors into one."""
        return round(self.active_parameters / self.layers) + 2 * self.hidden**2

    def elementwise_bytes_per_token(self, tensor_parallel: int = 1) -> float:
        """Elementwise bytes per token as of a dense model, with the widths that one token runs
        through."""
        if self.experts is None:
            return super().elementwise_bytes_per_token(tensor_parallel)
        qkv = self.attention_width + self.kv_elements_per_token_layer
        shared = (3 * self.token_width + 2 * qkv) / tensor_parallel
        return 2 * self.layers * (8 * self.hidden + shared)

    @property
    def token_width(self) -> int:
        """Width that one token takes after attention: of the MLP, or of its experts together."""
        if self.experts is None:
            return self.intermediate
        chosen = self.experts.per_token * self.experts.intermediate
        return chosen + self.experts.shared_intermediate

    @property
    def kv_elements_per_token_layer(self) -> int:
        """Numbers that one token leaves in the KV cache of one layer, without the indexer's."""
        if self.latent is None:
            return 2 * self.kv_heads * self.head_dim
        return self.latent.kv_rank + self.latent.rope_dim

    @property
    def index_bytes_per_token_layer(self) -> int:
        """Bytes of one token in the indexer's cache of one layer: a key in FP8 with its scale."""
        return self.sparse.head_dim + _SCALE_BYTES if self.sparse else 0

    @property
    def kv_bytes_per_token_layer(self) -> float:
        """Bytes of one token in the KV cache of one layer, the indexer's included."""
        if self.sparse is not None and self.latent is not None and self.kv_format == "fp8":
            # vLLM's fp8_ds_mla: a float32 scale per 128 numbers, and the position in bf16.
            scales = self.latent.kv_rank / 128 * _SCALE_BYTES
            stored = self.latent.kv_rank + scales + 2 * self.latent.rope_dim
            return stored + self.index_bytes_per_token_layer
        stored = self.kv_elements_per_token_layer * STORED_BYTES[self.kv_format]
        return stored + self.index_bytes_per_token_layer

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token keeps in the KV caches of all layers; layers with a window drop
        a token for it, and those with a state keep none."""
        return self.kv_layers * self.kv_bytes_per_token_layer

    @property
    def kv_layers(self) -> int:
        """Layers whose KV cache grows with the context."""
        others = (each.layers for each in (self.window, self.linear) if each is not None)
        return self.layers - sum(others)

    def kv_share(self, tensor_parallel: int) -> float:
        """Share of a token's KV on one GPU of a group. A model with fewer KV heads than the group
        has GPUs is copied, unless each GPU attends for sequences of its own."""
        if self.attention_data_parallel:
            return 1 / tensor_parallel / self.pipeline_parallel
        heads = 1 if self.latent else self.kv_heads
        return math.ceil(heads / tensor_parallel) / heads / self.pipeline_parallel


_GROUPS = {
    "experts": Experts,
    "latent": LatentAttention,
    "window": SlidingWindow,
    "linear": LinearAttention,
    "sparse": SparseAttention,
    "attention": OwnAttention,
    "mlp": PlainMlp,
}
_SCALE_BYTES = 4
"""Bytes of the float32 scale of an indexer's key, as vLLM and DeepSeek's kernels keep it."""


def is_large(sizes: JsonObject) -> bool:
    """Whether a model's file describes more than a dense model."""
    return any(name in sizes for name in _GROUPS)


def large_model(dense: LlmModel, sizes: JsonObject | None = None, **served: Any) -> LargeModel:
    """The model of ``dense`` with the groups of its file.

    Args:
      dense: the sizes that every model has.
      sizes: architecture in the model's file, where it has such groups.
      served: fields of ``LargeModel`` that say how it is served.

    Raises:
      InputError: a size in the file is missing or not positive.
    """
    values = {field.name: getattr(dense, field.name) for field in fields(LlmModel)}
    for name, kind in _GROUPS.items():
        if sizes is not None and name in sizes:
            group = sizes.inside(name, [field.name for field in fields(kind)])
            given = {key: group.whole(key, 0) for key in group}
            required = [field.name for field in fields(kind) if field.default is MISSING]
            values[name] = kind(**given | {key: group.whole(key, 1) for key in required})
            if kind in (SlidingWindow, LinearAttention):  # else no KV would grow with the context
                group.whole("layers", 1, dense.layers - 1)
    if sizes is not None and "drafting_layers" in sizes:
        values["drafting_layers"] = sizes.whole("drafting_layers", 0)
    model = LargeModel(**values | served)
    if model.kv_layers < 1:
        raise InputError(f"model {dense.name}: no layer attends to the whole context")
    if model.sparse is not None and model.latent is None:
        raise InputError(f"model {dense.name}: sparse needs latent, which reads what it selects")
    if model.linear is not None and model.window is not None:
        raise InputError(f"model {dense.name}: window and linear together are not modelled")
    return model
