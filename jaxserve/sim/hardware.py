"""GPUs, models and engine settings: the facts that every time, byte and joule is computed from.

`load_gpu` and `load_model` read `data/hardware/<name>.json` and `data/models/<name>.json`. Each
group of constants in those files names its `source`; what is an assumption says so there.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from jaxserve.datafiles import data_dir, load_json
from jaxserve.errors import InputError

FP16, INT8, INT4 = 0, 1, 2
TIER_NAMES = ("fp16", "int8", "int4")
"""Quantisation tiers: FP16 is bf16, INT8 is W8A8, INT4 is weight-only."""

GIB = 2**30


@dataclass(frozen=True)
class LinearFit:
    """Roofline fit of the linear layers in one number format.

    Attributes:
      weight_bytes: bytes that one parameter occupies in the weight stream.
      flops_per_s: peak arithmetic rate in this format, FLOP/s.
      bandwidth_efficiency: reached share of the GPU's memory bandwidth.
      flops_efficiency: reached share of `flops_per_s`.
      p_norm: exponent that joins the memory and the compute side; large means a sharp roofline.
      layer_constant_s: fixed seconds per layer (dequantisation and activation-quantisation kernels).
    """

    weight_bytes: float
    flops_per_s: float
    bandwidth_efficiency: float
    flops_efficiency: float
    p_norm: float
    layer_constant_s: float


@dataclass(frozen=True)
class AttentionFit:
    """Fit of the attention kernels, per layer.

    Attributes:
      constant_s: fixed seconds of a decode kernel.
      base_s, per_sequence_s: scheduling seconds, joined with the KV read by `q_norm`.
      bandwidth_efficiency: reached share of memory bandwidth while reading KV.
      q_norm: exponent that joins the two.
      prefill_constant_s: fixed seconds of a prefill kernel.
      prefill_flops_efficiency: reached share of the bf16 arithmetic rate in a prefill kernel.
    """

    constant_s: float
    base_s: float
    per_sequence_s: float
    bandwidth_efficiency: float
    q_norm: float
    prefill_constant_s: float
    prefill_flops_efficiency: float


@dataclass(frozen=True)
class DraftFit:
    """Fit of an EAGLE draft for Llama-3.1-8B.

    Attributes:
      fixed_s: seconds of one draft, measured as the same at every depth up to `flat_depth`.
      flat_depth: deepest draft measured; beyond it each further sequential pass costs its share.
      per_token_s: seconds per verified token.
      per_kv_token_s: seconds per KV token held by the drafting sequences.
    """

    fixed_s: float
    flat_depth: float
    per_token_s: float
    per_kv_token_s: float


@dataclass(frozen=True)
class Gpu:
    """One accelerator.

    Attributes:
      name: file name of its data.
      memory_bytes: device memory that a process can see, bytes.
      bandwidth_bytes_per_s: peak memory bandwidth.
      linear: fits for the tiers FP16, INT8, INT4, in that order.
      head_bandwidth_efficiency, head_flops_efficiency: reached shares in the output head (bf16).
      attention, draft: fits of attention kernels and of the EAGLE draft.
      host_s: seconds per iteration outside the kernels (scheduler, launch, sampling).
      elementwise_s_per_token: norms, rotary embedding, activation, per token of Llama-3.1-8B.
      link_bytes_per_s, link_latency_s: GPU-to-GPU link, one direction; seconds per collective.
      idle_w, joules_per_flop, joules_per_byte, max_w: power model.
      price_usd_per_hour, electricity_usd_per_kwh: rent of one GPU; energy with cooling.
    """

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    linear: tuple[LinearFit, LinearFit, LinearFit]
    head_bandwidth_efficiency: float
    head_flops_efficiency: float
    attention: AttentionFit
    draft: DraftFit
    host_s: float
    elementwise_s_per_token: float
    link_bytes_per_s: float
    link_latency_s: float
    idle_w: float
    joules_per_flop: float
    joules_per_byte: float
    max_w: float
    price_usd_per_hour: float
    electricity_usd_per_kwh: float


@dataclass(frozen=True)
class LlmModel:
    """Architecture of a dense decoder-only transformer with a gated MLP and grouped-query attention.

    Attributes:
      name: file name of its data.
      layers, hidden, heads, kv_heads, head_dim, intermediate, vocab: architecture sizes.
      tied_embeddings: the output head shares the embedding matrix.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied_embeddings: bool = False

    @property
    def layer_parameters(self) -> int:
        """Matrix parameters of one layer: q, k, v, o projections and the three MLP matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.intermediate

    @property
    def body_parameters(self) -> int:
        """Matrix parameters of all layers, without embedding and head."""
        return self.layers * self.layer_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters of the output head."""
        return self.hidden * self.vocab

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the input embedding that the head does not share."""
        return 0 if self.tied_embeddings else self.hidden * self.vocab

    @property
    def kv_bytes_per_token_layer(self) -> int:
        """Bytes of keys and values of one token in one layer, bf16."""
        return 2 * self.kv_heads * self.head_dim * 2

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers, bf16."""
        return self.layers * self.kv_bytes_per_token_layer


@dataclass(frozen=True)
class EngineSettings:
    """Engine defaults that memory and scheduling share.

    Attributes:
      chunk_budget: tokens that one iteration may schedule (chunked prefill).
      block_tokens: tokens of one KV block.
      max_sequences: largest batch cap; also what the nominal logits buffer is sized for.
      memory_utilization: share of device memory that the engine plans with.
      runtime_bytes: CUDA context, communication buffers and graphs.
    """

    chunk_budget: int = 2048
    block_tokens: int = 16
    max_sequences: int = 512
    memory_utilization: float = 0.92
    runtime_bytes: float = 0.6 * GIB


def gpu_names() -> tuple[str, ...]:
    """Names that `load_gpu` accepts."""
    return tuple(sorted(path.stem for path in (data_dir() / "hardware").glob("*.json")))


def model_names() -> tuple[str, ...]:
    """Names that `load_model` accepts."""
    return tuple(sorted(path.stem for path in (data_dir() / "models").glob("*.json")))


def load_gpu(name: str) -> Gpu:
    """GPU `name` from `data/hardware`.

    Raises:
      InputError: unknown name, or a constant in the file is missing or not a positive number.
    """
    if name not in gpu_names():
        raise InputError(f"gpu {name!r} is unknown; allowed are {', '.join(gpu_names())}")
    data = load_json(f"hardware/{name}.json")
    where = f"hardware/{name}.json"
    linear = tuple(_block(LinearFit, data["linear"], tier, where) for tier in TIER_NAMES)
    nested = {
        "name": data["name"],
        "linear": linear,
        "attention": _block(AttentionFit, data, "attention", where),
        "draft": _block(DraftFit, data, "draft", where),
    }
    flat: dict[str, Any] = {}
    for group in ("memory", "head", "iteration", "link", "power", "price"):
        flat |= {key: value for key, value in data[group].items() if key != "source"}
    names = [field.name for field in fields(Gpu) if field.name not in nested]
    return Gpu(**nested, **{key: _number(flat, key, where) for key in names})


def load_model(name: str) -> LlmModel:
    """Model `name` from `data/models`.

    Raises:
      InputError: unknown name, or a size in the file is missing or not positive.
    """
    if name not in model_names():
        raise InputError(f"model {name!r} is unknown; allowed are {', '.join(model_names())}")
    where = f"models/{name}.json"
    data = load_json(where)
    sizes = [field.name for field in fields(LlmModel) if field.type is int]
    numbers = {size: int(_number(data["architecture"], size, where)) for size in sizes}
    tied = bool(data["architecture"]["tied_embeddings"])
    return LlmModel(name=data["name"], tied_embeddings=tied, **numbers)


def _block(kind: Any, data: dict[str, Any], name: str, where: str) -> Any:
    """Dataclass `kind` from the group `name` of a data file."""
    if name not in data:
        raise InputError(f"{where} has no group {name!r}")
    return kind(**{field.name: _number(data[name], field.name, where) for field in fields(kind)})


def _number(group: dict[str, Any], key: str, where: str) -> float:
    """Finite non-negative number `key`; only the fixed costs may be zero."""
    value = group.get(key)
    valid = isinstance(value, int | float) and math.isfinite(value) and value >= 0
    if not valid or (value == 0 and key not in ("layer_constant_s", "constant_s", "fixed_s")):
        raise InputError(f"{where} field {key} is {value!r}; a positive number is required")
    return float(value)
