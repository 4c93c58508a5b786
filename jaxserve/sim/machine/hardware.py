"""GPUs, dense models and engine settings: the facts that times, bytes and joules are computed from.

``load_gpu`` reads ``data/hardware/<name>.json``, in which each group of constants names its
``source``; what is an assumption says so there. A GPU of the user's own is a file that says in what
it differs from one of them. ``jaxserve.sim.machine.models`` has the models by name.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, load_json, read_json
from jaxserve.errors import InputError
from jaxserve.fields import MAX_BATCH, Tier
from jaxserve.sim.machine.collectives import AllReduce

GIB = 2**30

_OWN_LINK = "own_link"
_WORDS = ("base", "description", "source")
"""Words of a GPU file beside constants."""
_MAY_BE_ZERO = ("layer_constant_s", "constant_s", "base_s", "fixed_s", "expert_layer_s")


@dataclass(frozen=True)
class LinearFit:
    """Roofline fit of the linear layers in one number format."""

    weight_bytes: float
    """bytes that one parameter occupies in the weight stream."""
    flops_per_s: float
    """peak arithmetic rate in this format, FLOP/s."""
    bandwidth_efficiency: float
    """reached share of the GPU's memory bandwidth."""
    flops_efficiency: float
    """reached share of ``flops_per_s``."""
    p_norm: float
    """exponent that joins the memory and the compute side; large means a sharp roofline."""
    layer_constant_s: float
    """fixed seconds per layer, to dequantise weights or quantise activations."""


@dataclass(frozen=True)
class AttentionFit:
    """Fit of the attention kernels, per layer of Llama-3.1-8B (32 heads, 8 KV heads)."""

    constant_s: float
    """fixed seconds of a decode kernel."""
    base_s: float
    """scheduling seconds, joined with the KV read by ``q_norm``."""
    per_sequence_s: float
    """seconds added for each sequence."""
    bandwidth_efficiency: float
    """reached share of memory bandwidth while reading KV."""
    q_norm: float
    """exponent that joins the two."""
    prefill_constant_s: float
    """fixed seconds of a prefill kernel."""
    prefill_per_token_s: float
    """seconds per query token besides its pairs: reading q, k, v, writing the output, and the
    masked half of the diagonal tiles."""
    prefill_flops_efficiency: float
    """reached share of the bf16 arithmetic rate over attended pairs."""


@dataclass(frozen=True)
class CacheFit:
    """The L2 cache, as a benchmark meets it that runs the attention of one layer again and again.

    Serving never does: between two reads of a layer's KV come those of all other layers and their
    weights. So kernel times are compared with it, and iterations are timed without.
    """

    cache_bytes: float
    """KV up to here stays in the cache."""
    bytes_per_s: float
    """reached while reading KV from it."""


@dataclass(frozen=True)
class DraftFit:
    """Fit of an EAGLE draft for Llama-3.1-8B."""

    fixed_s: float
    """seconds of one draft, measured as the same at every depth up to ``flat_depth``."""
    flat_depth: float
    """deepest draft measured; beyond it each further sequential pass costs its share."""
    per_token_s: float
    """seconds per verified token."""
    per_kv_token_s: float
    """seconds per KV token held by the drafting sequences."""


@dataclass(frozen=True)
class Gpu:
    """Constants of one accelerator."""

    name: str
    """file name of its data."""
    memory_bytes: float
    """device memory that a process can see, bytes."""
    bandwidth_bytes_per_s: float
    """peak memory bandwidth."""
    linear: tuple[LinearFit, LinearFit, LinearFit]
    """fits by tier, see ``jaxserve.fields.Tier``."""
    head_bandwidth_efficiency: float
    """reached share of memory bandwidth in the output head (bf16)."""
    head_flops_efficiency: float
    """reached share of the arithmetic rate there."""
    attention: AttentionFit
    """fit of the attention kernels."""
    cache: CacheFit | None
    """None where kernels are hardly faster while their KV fits the cache."""
    draft: DraftFit
    """fit of the EAGLE draft."""
    host_s: float
    """seconds per iteration outside the kernels (scheduler, launch, sampling)."""
    elementwise_s_per_token: float
    """norms, rotary embedding, activation, per token of Llama-3.1-8B."""
    link_bytes_per_s: float
    """GPU-to-GPU link, one direction, bytes per second."""
    link_latency_s: float
    """seconds of a collective that moves nothing."""
    link_gpus: float
    """GPUs that such links join; collectives among more GPUs have no constants."""
    all_reduce: AllReduce | None
    """measured collectives between such GPUs; None where only the link is known."""
    idle_w: float
    """power of an idle GPU, W."""
    joules_per_flop: float
    """energy of the arithmetic."""
    joules_per_byte: float
    """energy of the memory traffic."""
    max_w: float
    """power limit, W."""
    price_usd_per_hour: float
    """rent of one GPU, US dollars."""
    electricity_usd_per_kwh: float
    """price of energy, cooling included."""


@dataclass(frozen=True)
class LlmModel:
    """Dense decoder-only transformer with a gated MLP and grouped-query attention."""

    name: str
    """file name of its data."""
    layers: int
    """transformer layers."""
    hidden: int
    """width of the residual stream."""
    heads: int
    """query heads."""
    kv_heads: int
    """key and value heads."""
    head_dim: int
    """width of one head."""
    intermediate: int
    """width of the gated MLP."""
    vocab: int
    """tokens in the vocabulary."""
    tied_embeddings: bool = False
    """the output head shares the embedding matrix."""
    context_tokens: int | None = dataclasses.field(default=None, repr=False)
    """longest sequence that the model was made for, prompt and output together; None where its
    file does not tell. Times do not depend on it, so neither do digests, which are of the
    ``repr``."""

    @property
    def attention_parameters(self) -> int:
        """Matrix parameters of one layer's attention: q, k, v and o projections."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def attention_width(self) -> float:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def sublayers(self) -> int:
        """Attentions and MLPs, each of which ends in an all-reduce."""
        return 2 * self.layers

    @property
    def layer_parameters(self) -> int:
        """Matrix parameters of one layer: q, k, v, o projections and the three MLP matrices."""
        return self.attention_parameters + 3 * self.hidden * self.intermediate

    @property
    def body_parameters(self) -> int:
        """Matrix parameters of all layers, without embedding and head."""
        return self.layers * self.layer_parameters

    @property
    def active_parameters(self) -> float:
        """Parameters that one token is multiplied with, without embedding and head."""
        return self.body_parameters

    @property
    def body_stored_bytes(self) -> tuple[float, float, float]:
        """Stored bytes per body parameter by tier; INT4 keeps one bf16 scale per group of 128."""
        return 2.0, 1.0, 0.5 + 2 / 128

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
    def kv_layers(self) -> int:
        """Layers whose KV cache grows with the context."""
        return self.layers

    @property
    def pipeline_parallel(self) -> int:
        """Groups of GPUs that share the layers among them."""
        return 1

    def kv_share(self, tensor_parallel: int) -> float:
        """Share of a token's KV on one GPU of a group; fewer heads than GPUs are copied."""
        return math.ceil(self.kv_heads / tensor_parallel) / self.kv_heads

    @property
    def kv_bytes_per_token_layer(self) -> float:
        """Bytes of keys and values of one token in one layer, bf16."""
        return 2 * self.kv_heads * self.head_dim * 2

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of keys and values of one token in all layers, bf16."""
        return self.layers * self.kv_bytes_per_token_layer


@dataclass(frozen=True)
class EngineSettings:
    """Engine defaults that memory and scheduling share."""

    token_budget: int = 2048
    """tokens that one iteration may schedule (chunked prefill)."""
    max_sequences: int = MAX_BATCH
    """largest batch cap; also what the nominal logits buffer is sized for."""
    memory_utilization: float = 0.92
    """share of device memory that the engine plans with."""
    queue_capacity: int = 512
    """requests that may wait in a whole deployment; later ones are rejected."""
    runtime_bytes: float = 0.6 * GIB
    """CUDA context, communication buffers and graphs."""
    restart_s: float = 4.0
    """seconds to reload weights in another tier."""
    rerole_s: float = 3.0
    """seconds to become or cease to be a prefill engine."""
    oom_restart_s: float = 8.0
    """seconds to come back after running out of memory."""


@functools.cache
def gpu_names() -> tuple[str, ...]:
    """Names that ``load_gpu`` accepts."""
    return tuple(sorted(path.stem for path in (data_dir() / "hardware").glob("*.json")))


def load_gpu(name: str) -> Gpu:
    """GPU ``name`` from ``data/hardware``, or from a file of the user's own by its path.

    Such a file names the GPU it is like as ``base`` and has the constants in which it differs.

    Raises:
      InputError: unknown name, or a constant in the file is missing, unknown or not a positive
        number.
    """
    name = checks.known_name(name, gpu_names())
    data = gpu_data(name)
    linear = data.inside("linear")
    values: dict[str, Any] = {
        "name": Path(name).stem,
        "linear": tuple(block(LinearFit, linear, tier.name.lower()) for tier in Tier),
        "attention": block(AttentionFit, data, "attention"),
        "cache": block(CacheFit, data, "cache") if "cache" in data else None,
        "draft": block(DraftFit, data, "draft"),
        "all_reduce": None,
    }
    if "served" in data and not data.get(_OWN_LINK):
        values["all_reduce"] = block(AllReduce, data.inside("served"), "all_reduce")
    groups = ("memory", "head", "iteration", "link", "power", "price")
    flat = {key: group for group in map(data.inside, groups) for key in group}
    for field in fields(Gpu):
        if field.name not in values:
            values[field.name] = _constant(flat.get(field.name, data), field.name)
    return Gpu(**values)


def _own_gpu(path: Path) -> JsonObject:
    """Constants of the GPU in a file of the user's own."""
    where = f"GPU file {path.name}"
    own = JsonObject(read_json(path, where), where)
    if path.stem in gpu_names():
        raise InputError(f"{where} has the name of a packaged GPU; give it a name of its own")
    base = own.one_of("base", gpu_names())
    merged = _merged(load_json(f"hardware/{base}.json"), own)
    # Collectives were measured on the base's link only.
    merged[_OWN_LINK] = "link" in own and "all_reduce" not in own.get("served", {})
    return JsonObject(merged, where)


def _merged(base: dict[str, Any], own: JsonObject) -> dict[str, Any]:
    """``base`` with the constants of ``own``, group by group."""
    merged = dict(base)
    for key, value in JsonObject(own, own.where, {*base, *_WORDS}).items():
        nested = isinstance(base.get(key), dict)
        merged[key] = _merged(base[key], own.inside(key)) if nested else value
    return merged


def gpu_data(name: str) -> JsonObject:
    """Content of the file of GPU ``name``; see ``load_gpu``.

    Raises:
      InputError: unknown name, or a file that is not one of a GPU.
    """
    name = checks.known_name(name, gpu_names())
    if name in gpu_names():
        where = f"hardware/{name}.json"
        return JsonObject(load_json(where), where)
    if isinstance(name, str) and Path(name).suffix == ".json" and Path(name).is_file():
        return _own_gpu(Path(name))
    checks.refuse_name("gpu", name, gpu_names(), " or the path of a JSON file")


def block(kind: Any, data: JsonObject, name: str) -> Any:
    """Dataclass ``kind`` from the group ``name`` of a data file."""
    group = data.inside(name)
    return kind(**{field.name: _constant(group, field.name) for field in fields(kind)})


def _constant(group: JsonObject, key: str) -> float:
    """Positive number ``key``; only fixed costs may be zero."""
    return group.number(key, 0) if key in _MAY_BE_ZERO else group.positive(key)
