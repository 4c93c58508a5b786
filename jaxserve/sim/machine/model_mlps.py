"""MLPs and experts of a config.json's layers."""

from __future__ import annotations

from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.sim.machine.model_classes import EXPERT_COUNTS, EXPERTS_PER_TOKEN
from jaxserve.sim.machine.model_mixers import EXPERTS, MLP, size

_EVERY_LAYER = ("decoder_sparse_step", "moe_layer_freq")


def mlp_sizes(config: JsonObject, kinds: list[str]) -> dict[str, Any]:
    """Sizes of a model file that tell its MLPs and experts.

    Args:
      config: the whole config of the text model.
      kinds: kind of each layer, see ``jaxserve.sim.machine.model_mixers``.

    Raises:
      InputError: layers differ in ways that are not modelled, or a size is missing.
    """
    kind, found = config.get("model_type"), {}
    layers = len(kinds)
    if kind == "nemotron_h":
        layers = sum(each not in (MLP, EXPERTS) for each in kinds)
        found["mlp"] = {"matrices": 2, "missing": 2 * layers - len(kinds)}
        if found["mlp"]["missing"] < 0 or {MLP, EXPERTS} <= {*kinds}:
            raise InputError(f"{config.where}: it has more MLPs than mixers, or two kinds of them")
        if EXPERTS not in kinds:
            return found
        if config.get("moe_latent_size"):
            checks.refuse(config.name("moe_latent_size"), config["moe_latent_size"], "null")
    elif kind == "granitemoehybrid" and not config.get("num_local_experts"):
        return {"intermediate": size(config, "shared_intermediate_size")}
    elif kind == "jamba" and config.get("num_experts") == 1:
        return found  # a dense model
    elif kind == "llama4_text":
        found["intermediate"] = size(config, "intermediate_size_mlp")
    names = [_first(config, each) for each in (EXPERT_COUNTS, EXPERTS_PER_TOKEN)]
    if kind == "gemma4_text":
        if not config.get("enable_moe_block"):
            return found
        names[1] = "top_k_experts"
    elif not any(config.get(each) for each in EXPERT_COUNTS):
        return found
    for key in _EVERY_LAYER:
        if config.get(key, 1) != 1:
            checks.refuse(config.name(key), config[key], "1")
    count, per_token = (size(config, name) for name in names)
    dense = 0 if kind == "nemotron_h" else _dense_layers(config, layers)
    if per_token > count or dense >= layers:
        raise InputError(f"{config.where}: it has fewer experts or layers than it uses")
    width = "moe_intermediate_size" if config.get("moe_intermediate_size") else "intermediate_size"
    experts = {"count": count, "per_token": per_token, "intermediate": size(config, width)}
    optional = {"shared_intermediate": _shared(config, width), "dense_layers": dense}
    experts |= {name: value for name, value in optional.items() if value}
    return found | {"experts": experts}


def _dense_layers(config: JsonObject, layers: int) -> int:
    """Layers without experts: the first ones, the listed ones, or those between."""
    kind = config.get("model_type")
    if config.get("mlp_layer_types"):
        return config.entries("mlp_layer_types").count("dense")
    if kind == "llama4_text":
        step = size(config, "interleave_moe_layer_step", 1)
        listed = config.get("moe_layers")
        return layers - (layers // step if listed is None else len(config.entries("moe_layers")))
    if kind == "jamba":
        every, first = (
            size(config, "expert_layer_period"),
            size(config, "expert_layer_offset", low=0),
        )
        return sum(each % every != first for each in range(layers))
    dense = size(config, "first_k_dense_replace", 0, low=0)
    return dense + (len(config.entries("mlp_only_layers")) if config.get("mlp_only_layers") else 0)


def _shared(config: JsonObject, width: str) -> int:
    """Width of what every token runs through beside its experts."""
    kind = config.get("model_type")
    if kind == "granitemoehybrid":
        return size(config, "shared_intermediate_size", low=0)
    if kind in ("llama4_text", "gemma4_text"):
        return size(config, "intermediate_size")
    count = size(config, "n_shared_experts", 0, low=0)
    if kind == "nemotron_h":
        return count * size(config, "moe_shared_expert_intermediate_size", low=0)
    return size(config, "shared_expert_intermediate_size", 0, low=0) + count * size(config, width)


def _first(config: JsonObject, names: tuple[str, ...]) -> str:
    """The first of several names for the same that the config has; else the first of all."""
    return next((name for name in names if config.get(name)), names[0])
