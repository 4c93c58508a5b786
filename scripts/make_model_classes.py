"""Writes data/model_classes.json: what configuration classes assume of fields that are left out.

    python scripts/make_model_classes.py    # in an environment with transformers 5

The defaults are facts about the classes of transformers (Apache-2.0), none of its code is copied.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUT = Path(__file__).parents[1] / "data" / "model_classes.json"
FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
    "sliding_window",
    "use_sliding_window",
    "n_routed_experts",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "decoder_sparse_step",
    "moe_layer_freq",
    "intermediate_size_mlp",
    "shared_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "interleave_moe_layer_step",
    "attention_chunk_size",
    "enable_moe_block",
    "top_k_experts",
    "attention_k_eq_v",
    "hidden_size_per_layer_input",
    "num_kv_shared_layers",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "mamba_n_heads",
    "mamba_n_groups",
    "mamba_d_state",
    "mamba_d_conv",
    "mamba_expand",
    "mamba_num_heads",
    "mamba_head_dim",
    "ssm_state_size",
    "n_groups",
    "conv_kernel",
    "attn_layer_period",
    "attn_layer_offset",
    "expert_layer_period",
    "expert_layer_offset",
    "index_topk",
    "index_head_dim",
    "index_n_heads",
)
REMOTE = {
    "internlm2": {"tie_word_embeddings": False},
    "kimi_k2": {"tie_word_embeddings": False},
}
"""Classes whose code stands beside the weights (internlm/internlm2-chat-7b and
moonshotai/Kimi-K2-Instruct, configuration_*.py): sizes are always stated there."""


def main() -> None:
    """Reads the installed transformers."""
    import transformers
    from transformers import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as causal

    known = json.loads(OUT.read_text()) if OUT.exists() else {"classes": {}, "text_of": {}}
    kinds = sys.argv[1:] or [*known["classes"], *known["text_of"]]
    classes: dict[str, Any] = {}
    text_of: dict[str, str] = {}
    for kind in kinds:
        if kind in REMOTE:
            classes[kind] = {"defaults": REMOTE[kind]}
            continue
        config = CONFIG_MAPPING[kind]
        if "text_config" in getattr(config, "sub_configs", {}):
            text = config().text_config
            text_of[kind] = text.model_type
            continue
        defaults = {name: value for name, value in _defaults(config).items() if name in FIELDS}
        classes[kind] = {"defaults": defaults} | _pattern(config)
        if kind in causal:
            classes[kind]["architecture"] = causal[kind]
    outer = {kind: _defaults(CONFIG_MAPPING[kind]).get("tie_word_embeddings") for kind in text_of}
    for kind, text in text_of.items():
        # A part for text that says nothing of it has what the whole says.
        tied = classes.get(text, {}).get("defaults", {})
        if text in classes and "tie_word_embeddings" not in tied:
            tied["tie_word_embeddings"] = bool(outer[kind])
    OUT.write_text(
        json.dumps(
            {
                "source": "defaults of the configuration classes of transformers "
                f"{transformers.__version__} (Apache-2.0), by scripts/make_model_classes.py",
                "classes": dict(sorted(classes.items())),
                "text_of": dict(sorted(text_of.items())),
            },
            indent=1,
        )
        + "\n"
    )


def _defaults(config: Any) -> Mapping[str, Any]:
    names = inspect.signature(config.__init__).parameters.items()
    return {
        config.attribute_map.get(name, name): parameter.default
        for name, parameter in names
        if isinstance(parameter.default, bool | int | None)
    }


def _pattern(config: Any) -> dict[str, int]:
    """Every so many layers one reads the whole context, where windows are the rule of the class."""
    kinds = getattr(config(), "layer_types", None)
    if not kinds or {*kinds} != {"sliding_attention", "full_attention"}:
        return {}
    every = kinds.index("full_attention") + 1
    expected = ["sliding_attention"] * (every - 1) + ["full_attention"]
    assert kinds == (expected * len(kinds))[: len(kinds)], (config, kinds)
    return {"sliding_window_pattern": every}


if __name__ == "__main__":
    main()
