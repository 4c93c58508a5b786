"""A model of the user's own: a file like those of ``data/models``, or Hugging Face's config.json.

Of such a config only the architecture is read. What it says of number formats is not: tiers and
deployments name those.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError

_SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
}
_EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
_MOST = 10_000_000


def own_architecture(path: Path) -> JsonObject:
    """What ``architecture`` holds in a file of ``data/models``.

    Raises:
      InputError: it cannot be read, a size is missing, or it is no transformer of the kind that is
        modelled.
    """
    where = f"model file {path.name}"
    data = JsonObject(read_json(path, where), where)
    if "architecture" in data:
        return data.inside("architecture")
    # Models that see or hear keep the sizes of their text in a part of its own.
    return JsonObject(
        _converted(data.inside("text_config") if "text_config" in data else data), where
    )


def _converted(config: JsonObject) -> dict[str, Any]:
    if "num_hidden_layers" not in config:
        raise InputError(
            f"{config.where}: field 'num_hidden_layers' is missing; it must be the config.json of "
            "a decoder with a gated MLP, or a file like those in data/models"
        )
    sizes: dict[str, Any] = {name: _size(config, key) for name, key in _SIZES.items()}
    heads = sizes["heads"]
    sizes["kv_heads"] = _size(config, "num_key_value_heads", heads)
    sizes["head_dim"] = _size(config, "head_dim", sizes["hidden"] // heads)
    sizes["tied_embeddings"] = bool(config.get("tie_word_embeddings", False))
    if config.get("kv_lora_rank"):
        sizes |= _latent(config)
    if _named(config, _EXPERT_COUNTS):
        sizes["experts"] = _experts(config, sizes["layers"])
    window = _window(config, sizes["layers"])
    return sizes | ({"window": window} if window else {})


def _latent(config: JsonObject) -> dict[str, Any]:
    """Every token has one compressed vector; ``head_dim`` is that of a key without its position."""
    return {
        "kv_heads": 1,
        "head_dim": _size(config, "qk_nope_head_dim"),
        "latent": {
            "q_rank": _size(config, "q_lora_rank"),
            "kv_rank": _size(config, "kv_lora_rank"),
            "rope_dim": _size(config, "qk_rope_head_dim"),
            "value_dim": _size(config, "v_head_dim"),
        },
    }


def _experts(config: JsonObject, layers: int) -> dict[str, int]:
    """Of the layers that have them: all but the first ones, or but those that are listed."""
    if config.get("decoder_sparse_step", 1) != 1:
        checks.refuse(config.name("decoder_sparse_step"), config["decoder_sparse_step"], "1")
    count, per_token = (
        _size(config, _required(config, names)) for names in (_EXPERT_COUNTS, _EXPERTS_PER_TOKEN)
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
    """None where all layers read the whole context."""
    if not config.get("sliding_window") or config.get("use_sliding_window") is False:
        return None
    kinds = config.get("layer_types")
    windowed = layers
    if isinstance(kinds, list):
        windowed = sum(kind == "sliding_attention" for kind in kinds)
    elif config.get("sliding_window_pattern"):  # every so many layers one reads all
        windowed = layers - layers // _size(config, "sliding_window_pattern")
    return {"layers": windowed, "tokens": _size(config, "sliding_window")} if windowed else None


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
