"""Hugging Face's config.json: the packaged models from theirs, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve import cli
from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import (
    kv_bytes_per_token,
    kv_capacity_tokens,
    sequence_kv,
)
from jaxserve.sim.machine.models import load_model

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
_QWEN_MOE = {
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "max_position_embeddings": 262144,
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
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "max_position_embeddings": 131072,
    "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn"},
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
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "max_position_embeddings": 163840,
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
_MISTRAL = _LLAMA | {  # Mistral-7B-v0.1
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "sliding_window": 4096,
    "vocab_size": 32000,
}
_PHI_3 = {  # Phi-3-mini-4k-instruct
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "sliding_window": 2047,
    "vocab_size": 32064,
}
_DEEPSEEK_LITE = {  # DeepSeek-V2-Lite
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "moe_layer_freq": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
}
_MINIMAX_M2 = {
    "attn_type_list": [1] * 62,
    "head_dim": 128,
    "hidden_size": 3072,
    "intermediate_size": 1536,
    "max_position_embeddings": 196608,
    "model_type": "minimax_m2",
    "num_attention_heads": 48,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 62,
    "num_key_value_heads": 8,
    "num_local_experts": 256,
    "qk_norm_type": "per_layer",
    "shared_intermediate_size": 0,
    "tie_word_embeddings": False,
    "use_qk_norm": True,
    "vocab_size": 200064,
}
_OTHER_KINDS = {
    "ernie4_5_moe": {"moe_num_experts": 64, "moe_layer_interval": 1},  # ERNIE-4.5-21B-A3B
    "deepseek_v4": {"index_topk": 512},
    "starcoder2": {},
    "phi": {},
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


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": None, "n_positions": 1024}, 1024),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {
                    "factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 4096,
                "rope_scaling": {"rope_type": "linear", "factor": 2.5},
            },
            10240,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "longrope", "factor": 32.0},
            },
            131072,
        ),
        ({"max_position_embeddings": 4096, "rope_parameters": {"rope_theta": 1e4}}, 4096),
    ],
)  # fmt: skip
def test_context_length(fields: dict[str, Any], tokens: int | None, tmp_path: Path) -> None:
    """As vLLM derives it: a stretched rotary embedding reaches further, unless the config has
    counted that already."""
    config = {key: value for key, value in _LLAMA.items() if key not in _CONTEXT_FIELDS}
    assert load_model(_file(tmp_path, config | fields)).context_tokens == tokens


def test_a_stretch_that_is_no_number(tmp_path: Path) -> None:
    """It is refused in a sentence."""
    config = _LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": "two"}}
    with pytest.raises(InputError, match="rope_scaling: factor is 'two'"):
        load_model(_file(tmp_path, config))


_CONTEXT_FIELDS = ("max_position_embeddings", "rope_scaling")


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
    """Every other layer reads all."""
    config = _LLAMA | {"num_hidden_layers": 26, "sliding_window": 128, "sliding_window_pattern": 2}
    window = getattr(load_model(_file(tmp_path, config)), "window", None)
    assert window is not None and (window.layers, window.tokens) == (13, 128)


@given(st.integers(1, 40), st.integers(1, 8192), st.data())
def test_windows_of_any_size_are_counted(layers: int, tokens: int, data: st.DataObject) -> None:
    """A sequence keeps KV in each layer, of the window at most; all layers may not have one."""
    kinds = st.sampled_from(["full_attention", "sliding_attention"])
    types = data.draw(st.lists(kinds, min_size=layers, max_size=layers))
    config = _LLAMA | {"num_hidden_layers": layers, "sliding_window": tokens, "layer_types": types}
    windowed = types.count("sliding_attention")
    with tempfile.TemporaryDirectory() as folder:
        try:
            model = load_model(_file(Path(folder), config))
        except InputError as error:
            assert "sliding_window" in str(error) and windowed == layers
            return
    assert model.kv_layers == layers - windowed >= 1
    held = sequence_kv(model)
    assert (held is None) == (windowed == 0)
    if held is not None:
        token_bytes = kv_bytes_per_token(model, False)
        each_bytes = model.kv_bytes_per_token_layer
        for context in (tokens / 2, tokens, 2 * tokens):
            kept = token_bytes * (context + held.beside(context))
            needed = each_bytes * (model.kv_layers * context + windowed * min(context, tokens))
            assert kept >= needed - 1e-6 * needed


@pytest.mark.parametrize("config", [_MISTRAL, _PHI_3])
def test_windows_in_all_layers(config: dict[str, Any], tmp_path: Path) -> None:
    """They are refused with a way on, by which every layer keeps the whole context."""
    with pytest.raises(InputError, match=r"sliding_window is \d+; it must be null"):
        load_model(_file(tmp_path, config))
    without = config | {"sliding_window": None}
    model = load_model(_file(tmp_path, without))
    assert kv_capacity_tokens(load_gpu("h100-sxm-80gb"), model, 0, 1.0, False) > 0


def test_a_window_that_no_context_reaches(tmp_path: Path) -> None:
    """Phi-3-mini-128k has one longer than its longest context."""
    config = _PHI_3 | {"max_position_embeddings": 131072, "sliding_window": 262144}
    assert load_model(_file(tmp_path, config)).kv_layers == 32


def test_a_file_in_which_all_layers_have_windows(tmp_path: Path) -> None:
    """Nothing would count as KV."""
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}
    sizes |= {"intermediate": 128, "vocab": 512, "window": {"layers": 2, "tokens": 64}}
    with pytest.raises(InputError, match="window: layers is 2; it must be"):
        load_model(_file(tmp_path, {"architecture": sizes}))


def test_queries_that_are_not_compressed(tmp_path: Path) -> None:
    """DeepSeek-V2-Lite has 15.7e9 parameters, as its publishers say."""
    model = load_model(_file(tmp_path, _DEEPSEEK_LITE))
    assert isinstance(model, LargeModel)
    outer = model.embedding_parameters + model.head_parameters
    assert model.body_parameters + model.expert_parameters + outer == pytest.approx(
        15.7e9, rel=0.01
    )
    missing = {key: value for key, value in _DEEPSEEK_LITE.items() if key != "q_lora_rank"}
    with pytest.raises(InputError, match="q_lora_rank is missing"):
        load_model(_file(tmp_path, missing))


def test_experts_as_wide_as_the_config_says(tmp_path: Path) -> None:
    """MiniMax-M2 has 230e9 parameters, of which a token meets 10e9, as its publishers say; its
    predecessors' layers of linear attention are refused."""
    model = load_model(_file(tmp_path, _MINIMAX_M2))
    assert isinstance(model, LargeModel)
    outer = model.embedding_parameters + model.head_parameters
    whole = model.body_parameters + model.expert_parameters + outer
    assert whole == pytest.approx(230e9, rel=0.01)
    assert model.active_parameters + model.head_parameters == pytest.approx(10e9, rel=0.05)
    for field, value in (("attn_type_list", [0, 1] * 31), ("shared_intermediate_size", 1536)):
        with pytest.raises(InputError, match=f"{field} is .*; it must be"):
            load_model(_file(tmp_path, _MINIMAX_M2 | {field: value}))


@pytest.mark.parametrize("kind", _OTHER_KINDS)
def test_other_architectures_are_refused(kind: str, tmp_path: Path) -> None:
    """By their type; also without it where a field tells."""
    fields = _OTHER_KINDS[kind]
    with pytest.raises(InputError, match=f"model_type is '{kind}'; it must be .* data/models"):
        load_model(_file(tmp_path, _LLAMA | fields | {"model_type": kind}))
    if fields:
        with pytest.raises(InputError, match="is a field that is not understood"):
            load_model(_file(tmp_path, _LLAMA | fields))


def test_formats_of_a_config_are_not_read(tmp_path: Path) -> None:
    """A warning says so."""
    config = _QWEN_MOE | {"quantization_config": {"quant_method": "fp8"}}
    with pytest.warns(InputWarning, match="quantization_config is not read; tiers 0, 1 and 2"):
        load_model(_file(tmp_path, config))


def test_a_command_prints_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once, as it prints errors."""
    config = _file(tmp_path, _LLAMA | {"quantization_config": {"quant_method": "awq"}})
    out = str(tmp_path / "table.parquet")
    options = ["--hardware", "h100-sxm-80gb", "--model", config, "--out", out]
    assert cli.main(["table", "build", *options]) == 0
    said = capsys.readouterr().err
    assert said.count("quantization_config") == 1 and said.startswith("jaxserve: model file")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"n_layer": 12}, "field 'num_hidden_layers' is missing; it must be the config.json"),
        (_LLAMA | {"hidden_size": 0}, "hidden_size is 0; it must be a whole number from 1"),
        (_LLAMA | {"vocab_size": "many"}, "vocab_size is 'many'; it must be"),
        (_QWEN_MOE | {"num_experts_per_tok": 129}, "fewer experts or layers than it uses"),
        (_QWEN_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step is 2; it must be 1"),
        (_DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq is 2; it must be 1"),
        (
            _LLAMA | {"layer_types": ["linear_attention", "full_attention"] * 16},
            "layer_types is .*; it must be full_attention or sliding_attention for each of the 32",
        ),
        (_LLAMA | {"layer_types": ["chunked_attention"] * 32}, "layer_types is .*; it must be"),
        (_LLAMA | {"layer_types": ["full_attention"] * 31}, "layer_types is .*; it must be"),
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


CLASSES = json.loads((data_dir() / "model_classes.json").read_text())


def _loaded(folder: Path, config: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        return load_model(_file(folder, config))


@given(st.sampled_from(sorted(CLASSES["classes"])), st.data())
def test_a_field_left_out_is_the_class_default(kind: str, data: st.DataObject) -> None:
    """A part for text that leaves out any of its fields is the model of the whole config, or is
    refused; the same whether its class is named inside or outside."""
    stated = {key: v for key, v in CLASSES["classes"][kind]["defaults"].items() if v is not None}
    whole = {"sliding_window": None, "num_hidden_layers": 8, "first_k_dense_replace": 0} | {
        key: value for key, value in stated.items() if key != "first_k_dense_replace"
    }
    whole |= {"sliding_window": None, "model_type": kind}
    left_out = data.draw(st.sets(st.sampled_from(sorted(stated)))) - {"sliding_window"}
    sparse = {key: value for key, value in whole.items() if key not in left_out}
    outer = {"text_config": sparse}
    if data.draw(st.booleans()):
        outer["model_type"] = sparse.pop("model_type")
    with tempfile.TemporaryDirectory() as folder:
        try:
            expected = _loaded(Path(folder), {"text_config": whole})
        except InputError as error:
            # Classes whose sizes are always stated, and Gemma 4's, which is that of E2B.
            assert "is missing" in str(error) or kind == "gemma4_text"
            return
        assert _loaded(Path(folder), outer) == expected


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (  # gemma-7b
            {
                "head_dim": 256,
                "hidden_size": 3072,
                "intermediate_size": 24576,
                "model_type": "gemma",
                "num_attention_heads": 16,
                "num_hidden_layers": 28,
                "num_key_value_heads": 16,
                "vocab_size": 256000,
            },
            8.54e9,
        ),
        (  # gemma-3-4b-it
            {
                "model_type": "gemma3",
                "text_config": {
                    "hidden_size": 2560,
                    "intermediate_size": 10240,
                    "model_type": "gemma3_text",
                    "num_hidden_layers": 34,
                    "sliding_window": None,
                },
            },
            3.88e9,
        ),
        (  # llava-1.5-7b-hf: Vicuna, but for its vocabulary
            {
                "model_type": "llava",
                "text_config": {"max_position_embeddings": 4096, "vocab_size": 32064},
                "vision_config": {},
            },
            6.74e9,
        ),
    ],
)
def test_parameters_of_configs_that_say_little(
    config: dict[str, Any], parameters: float, tmp_path: Path
) -> None:
    """As their publishers count them."""
    model = _loaded(tmp_path, config)
    found = model.body_parameters + model.embedding_parameters + model.head_parameters
    assert found == pytest.approx(parameters, rel=2e-3)


def test_sizes_taken_from_the_class_are_said(tmp_path: Path) -> None:
    """A user sees what the file does not state."""
    config = {"model_type": "llava", "text_config": {"vocab_size": 32064}}
    with pytest.warns(InputWarning, match="class llama: .*hidden_size 4096"):
        load_model(_file(tmp_path, config))


def test_fields_outside_of_the_part_for_text(tmp_path: Path) -> None:
    """Number formats, ties and an unknown class are seen where they stand outside."""
    text = {key: value for key, value in _LLAMA.items() if key != "tie_word_embeddings"}
    outer = {"text_config": text, "tie_word_embeddings": True}
    assert load_model(_file(tmp_path, outer)).tied_embeddings
    outer["quantization_config"] = {"quant_method": "fp8"}
    with pytest.warns(InputWarning, match="quantization_config is not read"):
        load_model(_file(tmp_path, outer))
    strange = {"model_type": "some_sparse_attention", "text_config": text | {"architectures": []}}
    with pytest.raises(InputError, match="model_type is 'some_sparse_attention'"):
        load_model(_file(tmp_path, strange))


def test_a_config_without_a_class(tmp_path: Path) -> None:
    """All fields whose default depends on the class are named at once: with a warning where a file
    is written by hand, and with a refusal in a part for text, which leaves out much."""
    known = ("architectures", "num_key_value_heads", "tie_word_embeddings")
    config = {key: value for key, value in _LLAMA.items() if key not in known}
    fields = "num_key_value_heads, head_dim, tie_word_embeddings"
    with pytest.warns(InputWarning, match=f"model_type is missing, and so are {fields}"):
        assert load_model(_file(tmp_path, config)).kv_heads == _LLAMA["num_attention_heads"]
    with pytest.raises(InputError, match=f"model_type is missing, and so are {fields}"):
        load_model(_file(tmp_path, {"text_config": config}))


@pytest.mark.parametrize("named", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_number_of_experts_under_any_name(named: str, tmp_path: Path) -> None:
    """It stands before the class's default, which has another name."""
    config = {key: value for key, value in _QWEN_MOE.items() if key != "num_experts"}
    model = _loaded(tmp_path, config | {named: 64})
    assert isinstance(model, LargeModel)
    assert model.experts is not None and model.experts.count == 64
