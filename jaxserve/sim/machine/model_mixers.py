"""Kinds of a config.json's layers: windows, states of linear attention and state spaces, indexers.

Shapes are those of the classes of Hugging Face's transformers 5.19 (``models/*/modeling_*.py``),
and states those that vLLM allocates (``model_executor/layers/mamba/mamba_utils.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.errors import InputError

FULL, WINDOW, STATE, MLP, EXPERTS = "full", "window", "state", "mlp", "experts"
_USUAL = {"full_attention": FULL, "sliding_attention": WINDOW}
_LINEAR = {"full_attention": FULL, "linear_attention": STATE}
_HYBRID = _LINEAR | {"attention": FULL, "mamba": STATE}
_OF_CLASS = {
    "llama4_text": {"full_attention": FULL, "chunked_attention": WINDOW},
    "deepseek_v32": {"indexed_attention": FULL},
    "glm_moe_dsa": {"indexed_attention": FULL},
    "qwen3_next": _LINEAR,
    "qwen3_5_text": _LINEAR,
    "qwen3_5_moe_text": _LINEAR,
    "granitemoehybrid": _HYBRID,
    "jamba": _HYBRID,
    "nemotron_h": _HYBRID
    | {"mlp": MLP, "moe": EXPERTS, "*": FULL, "M": STATE, "-": MLP, "E": EXPERTS},
}
"""Kinds of layers by their names in a config, for the classes that have others than usual."""
_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")
"""Fields that name the kind of each layer."""
_EVERY_FOURTH = 4
"""Period of full attention in Qwen3-Next, Qwen3.5 and Llama 4, where their config names none."""
_NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_MODEL_NUMBER = 2  # bytes, bf16
_MOST = 100_000_000


def size(config: JsonObject, key: str, default: int | None = None, low: int = 1) -> int:
    """A whole number; null counts as missing."""
    if config.get(key) is None and default is not None:
        return default
    return config.whole(key, low, _MOST)


def layer_kinds(config: JsonObject) -> list[str]:
    """Kind of each layer: ``FULL``, ``WINDOW``, ``STATE``, ``MLP`` or ``EXPERTS``.

    Raises:
      InputError: a kind is unknown, or there are not as many as layers.
    """
    kind, name = config.get("model_type"), next((key for key in _LISTS if config.get(key)), None)
    if name is not None:
        named, layers = config[name], size(config, "num_hidden_layers")
        known = _OF_CLASS.get(kind or "", _USUAL)
        listed = isinstance(named, list | str) and all(isinstance(each, str) for each in named)
        if not listed or len(named) != layers or {*named} - {*known}:
            allowed = f"{' or '.join(known)} for each of the {layers} layers"
            checks.refuse(config.name(name), named, allowed)
        return [known[each] for each in named]
    layers = range(1, size(config, "num_hidden_layers") + 1)
    if kind in _GATED_DELTA:
        every = size(config, "full_attention_interval", _EVERY_FOURTH)
        return [STATE if each % every else FULL for each in layers]
    if kind == "jamba":
        every, first = size(config, "attn_layer_period"), size(config, "attn_layer_offset", low=0)
        return [FULL if (each - 1) % every == first else STATE for each in layers]
    if kind in _MAMBA2:
        raise InputError(
            f"{config.where}: field 'layer_types' is missing; it names each layer's kind"
        )
    if kind == "llama4_text":
        rotary = config.entries("no_rope_layers") if config.get("no_rope_layers") else None
        every = size(config, "no_rope_layer_interval", _EVERY_FOURTH)
        rotary = rotary or [int(each % every != 0) for each in layers]
        if len(rotary) != len(layers) or any(each not in (0, 1) for each in rotary):
            checks.refuse(config.name("no_rope_layers"), rotary, f"0 or 1 for {len(layers)} layers")
        return [WINDOW if each else FULL for each in rotary]
    if not _window_tokens(config):
        return [FULL] * len(layers)
    if not config.get("sliding_window_pattern"):
        return [WINDOW] * len(layers)
    every = size(config, "sliding_window_pattern")
    kinds = [WINDOW if each % every else FULL for each in layers]
    return [*kinds[:-1], FULL] if kind == "gemma4_text" else kinds


def _window_tokens(config: JsonObject) -> int:
    """Tokens that layers with a window or a chunk read; 0 where they read the whole context."""
    if config.get("model_type") == "llama4_text":
        return size(config, "attention_chunk_size", 0)
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return 0
    tokens, longest = size(config, "sliding_window"), config.get("max_position_embeddings")
    if longest is not None and size(config, "max_position_embeddings") <= tokens:
        return 0
    return tokens


def other_mixers(config: JsonObject, kinds: list[str]) -> dict[str, Any]:
    """Groups of ``LargeModel`` for layers that are not plain attention, by name.

    Raises:
      InputError: no layer keeps the whole context, or a layer's shape is unknown.
    """
    count, found = Counter(kinds), {}
    tokens = _window_tokens(config)
    if tokens and count[WINDOW]:
        if not count[FULL]:
            checks.refuse(
                config.name("sliding_window"),
                tokens,
                "null, with which all layers keep the whole context: a model whose layers all have "
                "a window is not modelled",
            )
        found["window"] = {"layers": count[WINDOW], "tokens": tokens}
    if count[STATE]:
        shape = _STATES.get(config.get("model_type", ""))
        if shape is None or not count[FULL]:
            raise InputError(
                f"{config.where}: {count[STATE]} layers keep a state in place of KV, which is only "
                f"understood of {', '.join(_STATES)} with some layers of full attention"
            )
        parameters, numbers, convolution, each_bytes = shape(config)
        found["linear"] = {
            "layers": count[STATE],
            "parameters": parameters,
            "state_numbers": numbers,
            "state_bytes": each_bytes * numbers + _MODEL_NUMBER * convolution,
        }
    if config.get("model_type") in _GATED_DELTA and config.get("attn_output_gate", True):
        found["attention"] = {"matrices": 3, "kv_matrices": 2}
    if config.get("model_type") == "gemma4_text":
        found |= _gemma4(config, found.get("window"))
    if config.get("model_type") in _INDEXED:
        found["sparse"] = _indexer(config)
    return found


_State = tuple[int, int, int, int]
"""Matrix parameters of a layer, numbers of its recurrent state and of its convolution's, and bytes
of one of the former."""


def _gated_delta(config: JsonObject) -> _State:
    """Gated delta rule: one matrix per value head (Yang et al., Gated Delta Networks, 2024)."""
    hidden, kernel = size(config, "hidden_size"), size(config, "linear_conv_kernel_dim")
    value_heads, width = size(config, "linear_num_value_heads"), size(config, "linear_key_head_dim")
    keys = size(config, "linear_num_key_heads") * width
    values = value_heads * size(config, "linear_value_head_dim")
    projected = 2 * keys + 2 * values + 2 * value_heads
    mixed = 2 * keys + values
    parameters = hidden * (projected + values) + mixed * kernel
    numbers = _number_bytes(config, "mamba_ssm_dtype", _MODEL_NUMBER)
    return parameters, values * width, mixed * (kernel - 1), numbers


def _granite(config: JsonObject) -> _State:
    heads, inner = size(config, "mamba_n_heads"), size(config, "mamba_expand")
    inner *= size(config, "hidden_size")
    if config.get("mamba_d_head") not in (None, "auto"):
        inner = heads * size(config, "mamba_d_head")
    state, groups = size(config, "mamba_d_state"), size(config, "mamba_n_groups")
    return _mamba2(config, heads, inner, state, groups, size(config, "mamba_d_conv"), _MODEL_NUMBER)


def _nemotron(config: JsonObject) -> _State:
    heads, state = size(config, "mamba_num_heads"), size(config, "ssm_state_size")
    inner, groups = heads * size(config, "mamba_head_dim"), size(config, "n_groups")
    numbers = _number_bytes(config, "mamba_ssm_cache_dtype", 4)
    return _mamba2(config, heads, inner, state, groups, size(config, "conv_kernel"), numbers)


def _mamba2(
    config: JsonObject, heads: int, inner: int, state: int, groups: int, kernel: int, numbers: int
) -> _State:
    """Dao and Gu, Transformers are SSMs, 2024."""
    mixed = inner + 2 * groups * state
    projections = size(config, "hidden_size") * (2 * inner + mixed + heads)
    return projections + mixed * kernel, inner * state, mixed * (kernel - 1), numbers


def _mamba1(config: JsonObject) -> _State:
    """Gu and Dao, Mamba, 2023."""
    hidden, kernel = size(config, "hidden_size"), size(config, "mamba_d_conv")
    inner, state = hidden * size(config, "mamba_expand"), size(config, "mamba_d_state")
    rank = config.get("mamba_dt_rank")
    rank = -(-hidden // 16) if rank in (None, "auto") else size(config, "mamba_dt_rank")
    parameters = inner * (3 * hidden + 2 * rank + 3 * state + kernel)
    return parameters, inner * state, inner * (kernel - 1), _MODEL_NUMBER


def _number_bytes(config: JsonObject, key: str, default: int) -> int:
    if config.get(key) is None:
        return default
    return _NUMBER_BYTES[config.one_of(key, _NUMBER_BYTES)]


def _gemma4(config: JsonObject, window: dict[str, int] | None) -> dict[str, Any]:
    """Layers of full attention have other heads than those with a window, and perhaps no values."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if config.get(key):
            checks.refuse(config.name(key), config[key], "0: what else it means is not modelled")
    if window is None:
        raise InputError(f"{config.where}: sliding_window is missing, without which heads differ")
    own = {"kv_heads": size(config, "num_key_value_heads"), "head_dim": size(config, "head_dim")}
    found: dict[str, Any] = {
        "window": window | own,
        "head_dim": size(config, "global_head_dim", 512),
    }
    if config.get("attention_k_eq_v"):
        found["kv_heads"] = size(config, "num_global_key_value_heads", own["kv_heads"])
        found["attention"] = {"matrices": 2, "kv_matrices": 1}
    return found


def _indexer(config: JsonObject) -> dict[str, int]:
    """Every layer has one; its queries come from the compressed ones of latent attention."""
    for key in ("kv_lora_rank", "q_lora_rank"):
        size(config, key)
    skips = config.get("index_topk_freq", 1) != 1 or config.get("index_topk_pattern")
    types = config.entries("indexer_types") if config.get("indexer_types") else ()
    if skips or any(each != "full" for each in types):
        raise InputError(
            f"{config.where}: layers share an indexer (index_topk_freq, index_topk_pattern or "
            "indexer_types), which is not modelled"
        )
    names = {"tokens": "index_topk", "heads": "index_n_heads", "head_dim": "index_head_dim"}
    return {name: size(config, key) for name, key in names.items()}


_GATED_DELTA = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_MAMBA2 = ("granitemoehybrid", "nemotron_h")
_INDEXED = ("deepseek_v32", "glm_moe_dsa")
_STATES: dict[str, Callable[[JsonObject], _State]] = {
    **dict.fromkeys(_GATED_DELTA, _gated_delta),
    "granitemoehybrid": _granite,
    "nemotron_h": _nemotron,
    "jamba": _mamba1,
}
READ = {*_STATES, *_INDEXED, "gemma4_text", "llama4_text"}
"""Classes whose layers differ in ways that are read."""
