"""Values that Hugging Face's configuration classes assume where a config.json leaves a field out.

A config.json may hold only what differs from its class's defaults, above all in the part for text
of a model that sees or hears. The defaults stand in ``data/model_classes.json``, which
``scripts/make_model_classes.py`` writes.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, read_json
from jaxserve.errors import InputError, InputWarning

EXPERT_COUNTS = ("n_routed_experts", "num_local_experts", "num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
_TEXT_PARTS = ("text_config", "llm_config", "language_config")
_OF_THE_WHOLE = ("tie_word_embeddings", "quantization_config")
"""Fields that stand outside of the part for text and hold for it as well."""
_RULED = ("num_key_value_heads", "head_dim", "tie_word_embeddings")
"""Fields without which a config is another model in another class."""


def whole_config(config: JsonObject, instead: str) -> JsonObject:
    """The config of the text model, with the defaults of its class.

    Args:
      config: a config.json, or what holds one in a part for text.
      instead: what else the user may give, for messages.

    Raises:
      InputError: a class that is not known, or one that is not named and fields whose default
        would depend on it.
    """
    name = next((part for part in _TEXT_PARTS if part in config), None)
    text = dict(config if name is None else config.inside(name))
    if name is not None:
        text = {key: config[key] for key in _OF_THE_WHOLE if key in config} | text
    kind = _class_of(text, config, nested=name is not None)
    where = config.where if name is None else config.inside(name).where
    if kind is None:
        missing = [field for field in _RULED if field not in text]
        if missing and "num_hidden_layers" in text:
            said = f"{where}: model_type is missing, and so are {', '.join(missing)}"
            if name is not None:  # a part for text leaves out much
                raise InputError(f"{said}; give them or the model_type, or {instead}")
            warnings.warn(
                f"{said}: they are taken as a Llama has them, as many KV heads as heads, heads of "
                "hidden_size / num_attention_heads, and an output layer of its own",
                InputWarning,
                stacklevel=2,
            )
        return JsonObject(text, where)
    known = _classes()["classes"].get(kind)
    if known is None:
        kinds = ", ".join(sorted({*_classes()["classes"], *_classes()["text_of"]}))
        allowed = f"that of a model whose config is understood, or give {instead} (known: {kinds})"
        checks.refuse(JsonObject(text, where).name("model_type"), kind, allowed)
    if name is None and "num_hidden_layers" not in text:
        return JsonObject(text, where)
    return JsonObject(_with_defaults(text, known, kind, where), where)


def _class_of(text: Mapping[str, Any], config: Mapping[str, Any], nested: bool) -> str | None:
    """The ``model_type`` that tells the defaults; None where nothing names it."""
    kind = text.get("model_type")
    if kind is None and nested:
        kind = config.get("model_type")
    if kind is None:
        named = [*(text.get("architectures") or ()), *(config.get("architectures") or ())]
        found = (k for k, v in _classes()["classes"].items() if v.get("architecture") in named)
        kind = next(found, None)
    elif not isinstance(kind, str):
        checks.refuse("model_type", kind, "a name")
    return _classes()["text_of"].get(kind, kind)


def _with_defaults(
    text: Mapping[str, Any], known: Mapping[str, Any], kind: str, where: str
) -> dict[str, Any]:
    defaults = {key: value for key, value in known["defaults"].items() if value is not None}
    # The same number has several names.
    for names in (EXPERT_COUNTS, EXPERTS_PER_TOKEN):
        if any(text.get(name) is not None for name in names):
            defaults = {key: value for key, value in defaults.items() if key not in names}
    if not text.get("layer_types") and "sliding_window_pattern" in known:
        defaults["sliding_window_pattern"] = known["sliding_window_pattern"]
    text = {**text, "model_type": kind}
    taken = {key: value for key, value in defaults.items() if key not in text}
    latent = ("head_dim",) if text.get("kv_lora_rank") else ()  # heads have widths of their own
    sizes = {key: value for key, value in taken.items() if key in _SIZES and key not in latent}
    if sizes:
        said = ", ".join(f"{key} {value}" for key, value in sizes.items())
        warnings.warn(
            f"{where}: what it leaves out is taken from the class {kind}: {said}",
            InputWarning,
            stacklevel=2,
        )
    return {**taken, **text}


_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    *EXPERT_COUNTS,
    *EXPERTS_PER_TOKEN,
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "shared_intermediate_size",
    "intermediate_size_mlp",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "mamba_n_heads",
    "mamba_num_heads",
    "mamba_d_state",
    "ssm_state_size",
)
"""Fields whose default changes the size of the model."""


@functools.cache
def _classes() -> dict[str, Any]:
    return read_json(data_dir() / "model_classes.json", "data/model_classes.json")
