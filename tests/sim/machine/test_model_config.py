"""Hugging Face's config.json: the packaged models from theirs, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
_QWEN_MOE = {
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
_GPT_OSS = {
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "sliding_window": 128,
    "vocab_size": 201088,
}
_DEEPSEEK = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


def _file(folder: Path, config: Any, name: str = "mine.json") -> str:
    (folder / name).write_text(json.dumps(config))
    return str(folder / name)


@pytest.mark.parametrize(
    ("config", "packaged"),
    [
        (_LLAMA, "llama-3.1-8b"),
        (_QWEN_MOE, "qwen3-30b-a3b"),
        (_GPT_OSS, "gpt-oss-120b"),
        (_DEEPSEEK, "deepseek-v3"),
        ({"text_config": _LLAMA, "vision_config": {}}, "llama-3.1-8b"),
    ],
)
def test_packaged_models_from_their_configs(
    config: dict[str, Any], packaged: str, tmp_path: Path
) -> None:
    """The same sizes under another name."""
    own = load_model(_file(tmp_path, config))
    assert own == dataclasses.replace(load_model(packaged), name="mine")


def test_a_file_of_the_packaged_form(tmp_path: Path) -> None:
    """It has its sizes in ``architecture``."""
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}
    sizes |= {"intermediate": 128, "vocab": 512}
    own = load_model(_file(tmp_path, {"architecture": sizes}))
    assert (own.name, own.layers, own.vocab) == ("mine", 2, 512)
    assert CostModel.of(load_gpu("h100-sxm-80gb"), own).iteration_s(decode_seqs=1, kv_tokens=9) > 0


def test_a_config_is_called_as_its_folder(tmp_path: Path) -> None:
    """All of them are called config.json."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert load_model(_file(folder, _LLAMA, "config.json")).name == "my-model"


def test_windows_by_a_pattern(tmp_path: Path) -> None:
    """Every sixth layer reads all."""
    config = _LLAMA | {"num_hidden_layers": 26, "sliding_window": 512, "sliding_window_pattern": 6}
    window = getattr(load_model(_file(tmp_path, config)), "window", None)
    assert window is not None and (window.layers, window.tokens) == (22, 512)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"n_layer": 12}, "field 'num_hidden_layers' is missing; it must be the config.json"),
        (_LLAMA | {"hidden_size": 0}, "hidden_size is 0; it must be a whole number from 1"),
        (_LLAMA | {"vocab_size": "many"}, "vocab_size is 'many'; it must be"),
        (_QWEN_MOE | {"num_experts_per_tok": 129}, "fewer experts or layers than it uses"),
        (_QWEN_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; it must be 1"),
        ([], "it must be a JSON object"),
    ],
)
def test_what_is_refused(config: Any, message: str, tmp_path: Path) -> None:
    """With the name of the file and the field."""
    with pytest.raises(InputError, match=message):
        load_model(_file(tmp_path, config))


def test_names(tmp_path: Path) -> None:
    """A packaged name is not taken, and an unknown one is refused."""
    with pytest.raises(InputError, match="has the name of a packaged model"):
        load_model(_file(tmp_path, _LLAMA, "llama-3.1-8b.json"))
    with pytest.raises(InputError, match=r"or the path of a JSON file"):
        load_model("none.json")
