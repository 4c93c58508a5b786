"""Models beyond the dense one: experts, latent attention, sliding windows, and their formats.

``data/models/<name>.json`` says which of them a model has; ``LargeModel`` is also the form in which
a dense model is served where a deployment names its number formats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from jaxserve.checks import JsonObject
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
    """Layers that attend to the last tokens only. Their KV is not counted."""

    layers: int
    """number of the model's layers with a sliding window."""
    tokens: int
    """tokens of context that these layers read."""


@dataclass(frozen=True)
class LargeModel(LlmModel):
    """A model with any of these, in the formats and the layout in which a deployment serves it."""

    experts: Experts | None = None
    """None for a dense model."""
    latent: LatentAttention | None = None
    """shapes of latent attention; None for grouped-query attention."""
    window: SlidingWindow | None = None
    """None where every layer attends to the whole context."""
    formats: tuple[str, str, str] = DEFAULT_FORMATS
    """number format of the weights in tiers 0, 1 and 2."""
    kv_format: str = "bf16"
    """number format of the KV cache."""
    pipeline_parallel: int = 1
    """groups of GPUs that share the layers among them."""
    attention_data_parallel: bool = False
    """each GPU of a group attends for sequences of its own, with all of the attention's weights."""

    @property
    def attention_parameters(self) -> int:
        """Matrix parameters of one layer's attention."""
        if self.latent is None:
            return super().attention_parameters
        latent = self.latent
        width = self.heads * (self.head_dim + latent.rope_dim)
        queries = latent.q_rank * (self.hidden + width) if latent.q_rank else self.hidden * width
        keys = self.hidden * (latent.kv_rank + latent.rope_dim)
        values = latent.kv_rank * self.heads * (self.head_dim + latent.value_dim)
        return queries + keys + values + self.heads * latent.value_dim * self.hidden

    @property
    def attention_width(self) -> float:
        """Width of all heads, the mean of keys and values, as prefill computes them."""
        if self.latent is None:
            return super().attention_width
        return self.heads * (self.head_dim + self.latent.rope_dim + self.latent.value_dim) / 2

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.experts.dense_layers if self.experts else 0

    @property
    def expert_parameters(self) -> int:
        """Parameters of all routed experts of all layers."""
        if self.experts is None:
            return 0
        each = 3 * self.hidden * self.experts.intermediate
        return self.expert_layers * self.experts.count * each

    @property
    def mlp_parameters(self) -> int:
        """Parameters, outside of the routed experts, of what follows attention in all layers."""
        if self.experts is None:
            return self.layers * 3 * self.hidden * self.intermediate
        dense = self.experts.dense_layers * self.intermediate
        shared = self.expert_layers * self.experts.shared_intermediate
        router = self.expert_layers * self.hidden * self.experts.count
        return 3 * self.hidden * (dense + shared) + router

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
        return self.layers * self.attention_parameters + self.mlp_parameters

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
        """Numbers that one token leaves in the KV cache of one layer."""
        if self.latent is None:
            return 2 * self.kv_heads * self.head_dim
        return self.latent.kv_rank + self.latent.rope_dim

    @property
    def kv_bytes_per_token_layer(self) -> float:
        """Bytes of one token in the KV cache of one layer."""
        return self.kv_elements_per_token_layer * STORED_BYTES[self.kv_format]

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one more token keeps in the KV caches of all layers; layers with a window drop
        a token for it."""
        return self.kv_layers * self.kv_bytes_per_token_layer

    @property
    def kv_layers(self) -> int:
        """Layers whose KV cache grows with the context."""
        return self.layers - (self.window.layers if self.window else 0)

    def kv_share(self, tensor_parallel: int) -> float:
        """Share of a token's KV on one GPU of a group. A model with fewer KV heads than the group
        has GPUs is copied, unless each GPU attends for sequences of its own."""
        if self.attention_data_parallel:
            return 1 / tensor_parallel / self.pipeline_parallel
        heads = 1 if self.latent else self.kv_heads
        return math.ceil(heads / tensor_parallel) / heads / self.pipeline_parallel


_GROUPS = {"experts": Experts, "latent": LatentAttention, "window": SlidingWindow}


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
            required = [field.name for field in fields(kind) if field.name not in _OPTIONAL]
            values[name] = kind(**given | {key: group.whole(key, 1) for key in required})
            if kind is SlidingWindow:  # else no KV would be counted at all
                group.whole("layers", 1, dense.layers - 1)
    return LargeModel(**values | served)


_OPTIONAL = ("shared_intermediate", "dense_layers", "q_rank")
