"""A model of the user's own: a file like those of ``data/models``, or Hugging Face's config.json.

Of such a config only the architecture is read. What it says of number formats is not: tiers and
deployments name those. Architectures that are not known to be of the modelled kind are refused: a
config says little of what its model's code computes.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.machine.model_classes import EXPERT_COUNTS, EXPERTS_PER_TOKEN, whole_config

_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}
_MOST = 10_000_000
_OTHERWISE = (
    "attn_layer_period",
    "expert_layer_period",
    "interleave_moe_layer_step",
    "linear_num_key_heads",
    "mamba_d_state",
    "moe_layer_interval",
    "moe_num_experts",
    "num_shared_experts",
)
"""Fields of architectures whose layers differ in ways that are not read."""
_EVERY_LAYER = ("decoder_sparse_step", "moe_layer_freq")
_SOFTMAX = 1  # of MiniMax's attn_type_list; 0 is a layer of linear attention
_FULL, _SLIDING = "full_attention", "sliding_attention"
_MAX_UNCOUNTED = 256
"""Greatest KV of layers with a window, which is not counted, in tokens of the other layers' KV: a
sequence may hold so much more than is simulated. That of gpt-oss is 128."""
_CONTEXTS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
_STRETCHED_ALREADY = ("default", "llama3", "longrope", "mrope", "su")
_OWN_FILE = "a file like those in data/models"


def own_architecture(path: Path) -> JsonObject:
    """Parses ``architecture`` of a file in ``data/models``.

    Raises:
      InputError: it cannot be read, a size is missing, or it is no transformer of the kind that is
        modelled.
    """
    where = f"model file {path.name}"
    data = JsonObject(read_json(path, where), where)
    if "architecture" in data:
        return data.inside("architecture")
    return JsonObject(_converted(whole_config(data, _OWN_FILE)), where)


def _converted(config: JsonObject) -> dict[str, Any]:
    if "num_hidden_layers" not in config:
        raise InputError(
            f"{config.where}: field 'num_hidden_layers' is missing; it must be the config.json of "
            f"a decoder with a gated MLP, or {_OWN_FILE}"
        )
    _check_kind(config)
    sizes: dict[str, Any] = {name: _size(config, key) for name, key in _SIZES.items()}
    heads = sizes["heads"]
    sizes["kv_heads"] = _size(config, "num_key_value_heads", heads)
    sizes["head_dim"] = _size(config, "head_dim", sizes["hidden"] // heads)
    sizes["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    if config.get("kv_lora_rank"):
        sizes |= _latent(config)
    if _named(config, EXPERT_COUNTS):
        sizes["experts"] = _experts(config, sizes["layers"])
    sizes["context_tokens"] = _context_tokens(config)
    window = _window(config, sizes["layers"])
    return sizes | ({"window": window} if window else {})


def _check_kind(config: JsonObject) -> None:
    """Refuses what would be read as another model than it is."""
    attention = config.get("attn_type_list")
    if attention is not None and attention != [_SOFTMAX] * config["num_hidden_layers"]:
        checks.refuse(config.name("attn_type_list"), attention, f"{_SOFTMAX} for every layer")
    if config.get("shared_intermediate_size"):
        checks.refuse(
            config.name("shared_intermediate_size"), config["shared_intermediate_size"], "0"
        )
    for key in _OTHERWISE:
        if config.get(key) is not None:
            raise InputError(
                f"{config.name(key)} is a field that is not understood: layers may differ in what "
                f"is not modelled; where they do not, give {_OWN_FILE}"
            )
    if config.get("quantization_config"):
        warnings.warn(
            f"{config.where}: quantization_config is not read; tiers 0, 1 and 2 are FP16, INT8 and "
            "INT4 unless a stack names other formats",
            InputWarning,
            stacklevel=2,
        )


def _latent(config: JsonObject) -> dict[str, Any]:
    """Every token has one compressed vector; ``head_dim`` is that of a key without its position.
    A ``q_lora_rank`` of null is a direct projection of queries."""
    direct = "q_lora_rank" in config and config["q_lora_rank"] is None
    return {
        "kv_heads": 1,
        "head_dim": _size(config, "qk_nope_head_dim"),
        "latent": {
            "q_rank": 0 if direct else _size(config, "q_lora_rank"),
            "kv_rank": _size(config, "kv_lora_rank"),
            "rope_dim": _size(config, "qk_rope_head_dim"),
            "value_dim": _size(config, "v_head_dim"),
        },
    }


def _experts(config: JsonObject, layers: int) -> dict[str, int]:
    """Number of layers with experts: all but the first ones, or but the listed ones."""
    for key in _EVERY_LAYER:
        if config.get(key, 1) != 1:
            checks.refuse(config.name(key), config[key], "1")
    count, per_token = (
        _size(config, _required(config, names)) for names in (EXPERT_COUNTS, EXPERTS_PER_TOKEN)
    )
    width = _named(config, ("moe_intermediate_size",)) or "intermediate_size"
    intermediate = _size(config, width)
    shared = _size(config, "shared_expert_intermediate_size", 0, low=0)
    shared += intermediate * _size(config, "n_shared_experts", 0, low=0)
    dense = _size(config, "first_k_dense_replace", 0, low=0)
    dense += len(config.get("mlp_only_layers") or ())
    found = {"count": count, "per_token": per_token, "intermediate": intermediate}
    if per_token > count or dense >= layers:
        raise InputError(f"{config.where}: it has fewer experts or layers than it uses")
    optional = {"shared_intermediate": shared, "dense_layers": dense}
    return found | {name: value for name, value in optional.items() if value}


def _window(config: JsonObject, layers: int) -> dict[str, int] | None:
    """None where all layers read the whole context.

    Raises:
      InputError: layers attend otherwise, or windows hold much KV: it is not counted.
    """
    kinds = config.get("layer_types") or [_FULL] * layers
    if not isinstance(kinds, list) or len(kinds) != layers or {*kinds} - {_FULL, _SLIDING}:
        allowed = f"{_FULL} or {_SLIDING} for each of the {layers} layers"
        checks.refuse(config.name("layer_types"), kinds, allowed)
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return None
    tokens = _size(config, "sliding_window")
    longest = config.get("max_position_embeddings")
    if longest is not None and _size(config, "max_position_embeddings") <= tokens:
        return None
    windowed = layers
    if config.get("layer_types"):
        windowed = kinds.count(_SLIDING)
    elif config.get("sliding_window_pattern"):  # every so many layers one reads all
        windowed = layers - layers // _size(config, "sliding_window_pattern")
    if windowed * tokens > _MAX_UNCOUNTED * (layers - windowed):
        checks.refuse(
            config.name("sliding_window"),
            tokens,
            "null, with which all layers keep the whole context, because the KV of layers with a "
            f"window, {windowed} of {layers} here, is not counted",
        )
    return {"layers": windowed, "tokens": tokens} if windowed else None


def _context_tokens(config: JsonObject) -> int | None:
    """Longest sequence, as vLLM derives its ``max_model_len``; None where the config has none.

    A rotary embedding that is stretched by a ``factor`` reaches so much further. Llama 3's and
    LongRoPE's are in ``max_position_embeddings`` already; YaRN's starts at the length before it.
    """
    longest = _named(config, _CONTEXTS)
    if longest is None:
        return None
    tokens = _size(config, longest)
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict) or "factor" not in rope:
        return tokens
    stretched = JsonObject(rope, config.name("rope_scaling"))
    kind = stretched.get("rope_type", stretched.get("type"))
    if kind in _STRETCHED_ALREADY:
        return tokens
    if kind == "yarn":
        tokens = _size(stretched, "original_max_position_embeddings", tokens)
    return int(tokens * stretched.number("factor", 1e-3))


def _size(config: JsonObject, key: str, default: int | None = None, low: int = 1) -> int:
    """A whole number; null counts as missing."""
    if config.get(key) is None and default is not None:
        return default
    return config.whole(key, low, _MOST)


def _named(config: JsonObject, names: Sequence[str]) -> str | None:
    return next((name for name in names if config.get(name)), None)


def _required(config: JsonObject, names: Sequence[str]) -> str:
    """The first of several names for the same that the config has; else the first of all."""
    return _named(config, names) or names[0]
