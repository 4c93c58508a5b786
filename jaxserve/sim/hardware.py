"""GPUs, models and engine settings: the facts that every time, byte and joule is computed from.

`load_gpu` and `load_model` read `data/hardware/<name>.json` and `data/models/<name>.json`. Each
group of constants in those files names its `source`; what is an assumption says so there. A GPU of
the user's own is a file that says in what it differs from one of them.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jaxserve.datafiles import data_dir, load_json, read_json
from jaxserve.errors import InputError

FP16, INT8, INT4 = 0, 1, 2
TIER_NAMES = ("fp16", "int8", "int4")
"""Quantisation tiers: FP16 is bf16, INT8 is W8A8, INT4 is weight-only."""

GIB = 2**30

_WORDS = ("base", "description", "source")
"""What a GPU file may say beside constants."""
_MAY_BE_ZERO = ("layer_constant_s", "constant_s", "base_s", "fixed_s")


@dataclass(frozen=True)
class LinearFit:
    """Roofline fit of the linear layers in one number format.

    Attributes:
      weight_bytes: bytes that one parameter occupies in the weight stream.
      flops_per_s: peak arithmetic rate in this format, FLOP/s.
      bandwidth_efficiency: reached share of the GPU's memory bandwidth.
      flops_efficiency: reached share of `flops_per_s`.
      p_norm: exponent that joins the memory and the compute side; large means a sharp roofline.
      layer_constant_s: fixed seconds per layer, to dequantise weights or quantise activations.
    """

    weight_bytes: float
    flops_per_s: float
    bandwidth_efficiency: float
    flops_efficiency: float
    p_norm: float
    layer_constant_s: float


@dataclass(frozen=True)
class AttentionFit:
    """Fit of the attention kernels, per layer of Llama-3.1-8B (32 heads, 8 KV heads).

    Attributes:
      constant_s: fixed seconds of a decode kernel.
      base_s, per_sequence_s: scheduling seconds, joined with the KV read by `q_norm`.
      bandwidth_efficiency: reached share of memory bandwidth while reading KV.
      q_norm: exponent that joins the two.
      prefill_constant_s: fixed seconds of a prefill kernel.
      prefill_per_token_s: seconds per query token besides its pairs: reading q, k, v, writing the
        output, and the masked half of the diagonal tiles.
      prefill_flops_efficiency: reached share of the bf16 arithmetic rate over attended pairs.
    """

    constant_s: float
    base_s: float
    per_sequence_s: float
    bandwidth_efficiency: float
    q_norm: float
    prefill_constant_s: float
    prefill_per_token_s: float
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
    """Dense decoder-only transformer with a gated MLP and grouped-query attention.

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
    def draft_parameters(self) -> int:
        """Parameters of an EAGLE draft: one layer, and the fusion of two vectors into one."""
        return self.layer_parameters + 2 * self.hidden**2

    def elementwise_bytes_per_token(self, tensor_parallel: int = 1) -> float:
        """Memory traffic on one GPU of the kernels between the matrix products.

        Per layer: two norms with residual add (8 hidden vectors, on every GPU), gated activation
        (3 intermediate vectors) and rotary embedding with the KV write (2 passes over q, k, v).
        """
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        shared = (3 * self.intermediate + 2 * qkv) / tensor_parallel
        return 2 * self.layers * (8 * self.hidden + shared)

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
      max_sequences: largest batch cap; also what the nominal logits buffer is sized for.
      memory_utilization: share of device memory that the engine plans with.
      runtime_bytes: CUDA context, communication buffers and graphs.
    """

    chunk_budget: int = 2048
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
    """GPU `name` from `data/hardware`, or from a file of the user's own by its path.

    Such a file names the GPU it is like as `base` and has the constants in which it differs.

    Raises:
      InputError: unknown name, or a constant in the file is missing, unknown or not a positive
        number.
    """
    where = f"hardware/{name}.json"
    if name in gpu_names():
        data = load_json(where)
    elif isinstance(name, str) and Path(name).suffix == ".json" and Path(name).is_file():
        where = name
        data = _own_gpu(Path(name))
        name = Path(name).stem
    else:
        allowed = f"{', '.join(gpu_names())}, or the path of a JSON file"
        raise InputError(f"gpu {name!r} is unknown; allowed are {allowed}")
    flat: dict[str, Any] = {}
    for group in ("memory", "head", "iteration", "link", "power", "price"):
        flat |= _group(data, group, where)
    linear = _group(data, "linear", where)
    values: dict[str, Any] = {
        "name": name,
        "linear": tuple(_block(LinearFit, linear, tier, where) for tier in TIER_NAMES),
        "attention": _block(AttentionFit, data, "attention", where),
        "draft": _block(DraftFit, data, "draft", where),
    }
    for field in fields(Gpu):
        if field.name not in values:
            values[field.name] = _number(flat, field.name, where)
    return Gpu(**values)


def load_model(name: str) -> LlmModel:
    """Model `name` from `data/models`.

    Raises:
      InputError: unknown name, or a size in the file is missing or not positive.
    """
    if name not in model_names():
        raise InputError(f"model {name!r} is unknown; allowed are {', '.join(model_names())}")
    where = f"models/{name}.json"
    sizes = _group(load_json(where), "architecture", where)
    values: dict[str, Any] = {"name": name, "tied_embeddings": bool(sizes.get("tied_embeddings"))}
    for field in fields(LlmModel):
        if field.name not in values:
            values[field.name] = int(_number(sizes, field.name, where))
    return LlmModel(**values)


def _own_gpu(path: Path) -> dict[str, Any]:
    """Constants of the GPU in a file of the user's own."""
    where = f"GPU file {path.name}"
    own = read_json(path, where)
    if path.stem in gpu_names():
        raise InputError(f"{where} has the name of a packaged GPU; give it a name of its own")
    base = own.get("base") if isinstance(own, dict) else None
    if base not in gpu_names():
        raise InputError(f"{where}: base is {base!r}; allowed are {', '.join(gpu_names())}")
    return _merged(load_json(f"hardware/{base}.json"), own, where)


def _merged(base: dict[str, Any], own: dict[str, Any], where: str) -> dict[str, Any]:
    """`base` with the constants of `own`, group by group."""
    merged = dict(base)
    for key, value in own.items():
        if key not in base and key not in _WORDS:
            known = ", ".join(known for known in base if known not in _WORDS)
            raise InputError(f"{where}: field {key!r} is unknown; allowed are {known}")
        nested = isinstance(base.get(key), dict)
        if nested and not isinstance(value, dict):
            raise InputError(f"{where}: {key} is {value!r}; it must be a group of constants")
        merged[key] = _merged(base[key], value, f"{where}: {key}") if nested else value
    return merged


def _group(data: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    """Object `name` of a data file."""
    if not isinstance(data.get(name), dict):
        raise InputError(f"{where} has no group {name!r}")
    return data[name]


def _block(kind: Any, data: dict[str, Any], name: str, where: str) -> Any:
    """Dataclass `kind` from the group `name` of a data file."""
    group = _group(data, name, where)
    return kind(**{field.name: _number(group, field.name, where) for field in fields(kind)})


def _number(group: dict[str, Any], key: str, where: str) -> float:
    """Finite positive number `key`; only fixed costs may be zero."""
    value = group.get(key)
    if (
        not isinstance(value, int | float)
        or not math.isfinite(value)
        or value < 0
        or (value == 0 and key not in _MAY_BE_ZERO)
    ):
        raise InputError(f"{where} field {key} is {value!r}; a positive number is required")
    return float(value)
