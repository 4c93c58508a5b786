"""A model of the user's own: a file like those of ``data/models``, or Hugging Face's config.json.

Of such a config only the architecture is read. Its number formats are ignored: tiers and
deployments name those. Architectures that are not known to be of the modelled kind are refused: a
config says little of what its model's code computes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.machine.model_classes import whole_config
from jaxserve.sim.machine.model_mixers import EXPERTS, MLP, READ, layer_kinds, other_mixers, size
from jaxserve.sim.machine.model_mlps import mlp_sizes

_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}
_OTHERWISE = (
    "attn_layer_period",
    "index_topk",
    "expert_layer_period",
    "interleave_moe_layer_step",
    "linear_num_key_heads",
    "mamba_d_state",
    "moe_layer_interval",
    "moe_num_experts",
    "hybrid_override_pattern",
    "layers_block_type",
    "num_shared_experts",
)
"""Fields of architectures whose layers differ in ways that are not read."""
_SOFTMAX = 1  # of MiniMax's attn_type_list; 0 is a layer of linear attention
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
    kinds = layer_kinds(config)
    experts = config.get("moe_intermediate_size")  # of classes without any other MLP
    defaults = {"intermediate": experts}
    sizes: dict[str, Any] = {
        name: size(config, key, defaults.get(name)) for name, key in _SIZES.items()
    }
    heads, mixers = sizes["heads"], [kind for kind in kinds if kind not in (MLP, EXPERTS)]
    sizes["layers"] = len(mixers)
    sizes["kv_heads"] = size(config, "num_key_value_heads", heads)
    sizes["head_dim"] = size(config, "head_dim", sizes["hidden"] // heads)
    sizes["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    if config.get("kv_lora_rank"):
        sizes |= _latent(config)
    sizes |= mlp_sizes(config, kinds)
    if config.get("num_nextn_predict_layers"):  # layers that draft, beside the others
        sizes["drafting_layers"] = size(config, "num_nextn_predict_layers")
    sizes["context_tokens"] = _context_tokens(config)
    return sizes | other_mixers(config, kinds)


def _check_kind(config: JsonObject) -> None:
    """Refuses what would be read as another model than it is."""
    if config.get("quantization_config"):
        warnings.warn(
            f"{config.where}: quantization_config is not read; tiers 0, 1 and 2 are FP16, INT8 and "
            "INT4 unless a stack names other formats",
            InputWarning,
            stacklevel=2,
        )
    attention = config.get("attn_type_list")
    if attention is not None and attention != [_SOFTMAX] * config["num_hidden_layers"]:
        checks.refuse(config.name("attn_type_list"), attention, f"{_SOFTMAX} for every layer")
    if config.get("model_type") in READ:
        return
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


def _latent(config: JsonObject) -> dict[str, Any]:
    """Every token has one compressed vector; ``head_dim`` is that of a key without its position.
    A ``q_lora_rank`` of null is a direct projection of queries."""
    direct = "q_lora_rank" in config and config["q_lora_rank"] is None
    return {
        "kv_heads": 1,
        "head_dim": size(config, "qk_nope_head_dim"),
        "latent": {
            "q_rank": 0 if direct else size(config, "q_lora_rank"),
            "kv_rank": size(config, "kv_lora_rank"),
            "rope_dim": size(config, "qk_rope_head_dim"),
            "value_dim": size(config, "v_head_dim"),
        },
    }


def _context_tokens(config: JsonObject) -> int | None:
    """Longest sequence, as vLLM derives its ``max_model_len``; None where the config has none.

    A rotary embedding that is stretched by a ``factor`` reaches so much further. Llama 3's and
    LongRoPE's are in ``max_position_embeddings`` already; YaRN's starts at the length before it.
    """
    longest = next((name for name in _CONTEXTS if config.get(name)), None)
    if longest is None:
        return None
    tokens = size(config, longest)
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict) or "factor" not in rope:
        return tokens
    stretched = JsonObject(rope, config.name("rope_scaling"))
    kind = stretched.get("rope_type", stretched.get("type"))
    if kind in _STRETCHED_ALREADY:
        return tokens
    if kind == "yarn":
        tokens = size(stretched, "original_max_position_embeddings", tokens)
    return int(tokens * stretched.number("factor", 1e-3))
