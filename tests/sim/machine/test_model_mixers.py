"""Promises of the kinds of layers that a config.json names: sizes as published, and refusals."""

from __future__ import annotations

import contextlib
import json
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS, sequence_kv, weights_bytes
from jaxserve.sim.machine.models import load_model
from tests.examples_drawn import MANY

PUBLISHED = json.loads((Path(__file__).parent / "published_models.json").read_text())["models"]
THREE_DIGITS = 0.005


def own_model(folder: Path, config: dict[str, Any]) -> LargeModel:
    """The model of ``config``, without its warnings."""
    (folder / "own.json").write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)
        model = load_model(str(folder / "own.json"))
    assert isinstance(model, LargeModel)
    return model


def published(name: str) -> dict[str, Any]:
    """Config of a published model."""
    return next(row["config"] for row in PUBLISHED if row["name"] == name)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_sizes_are_the_published_ones(row: dict[str, Any], tmp_path: Path) -> None:
    """Parameters, weights, KV of a token and blocks of a state, to three digits."""
    model = own_model(tmp_path, row["config"])
    outer = model.embedding_parameters + model.head_parameters
    state = sequence_kv(model)
    found = {
        "billions": (model.body_parameters + model.expert_parameters + outer) / 1e9,
        "kv_bytes": model.kv_bytes_per_token,
        "fp8_kv_bytes": replace(model, kv_format="fp8").kv_bytes_per_token,
        "mxfp4_gib": weights_bytes(replace(model, formats=("mxfp4", "fp8", "int4")), 0) / 2**30,
    }
    if model.linear is not None and state is not None:
        groups = -(-model.linear.layers // model.kv_layers)
        found["block_tokens"] = (state.state_tokens + BLOCK_SLACK_TOKENS) / (groups + 0.5)
    for name, value in found.items():
        if name in row:
            assert value == pytest.approx(row[name], rel=THREE_DIGITS), name
    if "active_billions" in row:  # model cards count the head in different ways
        active = (model.active_parameters + model.head_parameters) / 1e9
        assert active == pytest.approx(row["active_billions"], rel=0.02)


def test_layers_of_each_kind(tmp_path: Path) -> None:
    """As the configs name them: by a list, a pattern, a period, or the class's default."""
    gemma = own_model(tmp_path, published("gemma-3-27b"))
    assert gemma.window is not None and (gemma.window.layers, gemma.kv_layers) == (52, 10)
    llama = own_model(tmp_path, published("llama-4-maverick"))
    assert llama.window is not None and (llama.window.layers, llama.window.tokens) == (36, 8192)
    qwen = own_model(tmp_path, published("qwen3-next-80b-a3b"))
    assert qwen.linear is not None and (qwen.linear.layers, qwen.kv_layers) == (36, 12)
    nemotron = own_model(tmp_path, published("nemotron-3-nano-30b-a3b"))
    assert nemotron.linear is not None and nemotron.expert_layers == nemotron.linear.layers == 23
    assert (nemotron.layers, nemotron.kv_layers, nemotron.sublayers) == (29, 6, 52)
    config = published("qwen3-next-80b-a3b")
    listed = config | {"layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12}
    assert own_model(tmp_path, listed) == qwen


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("qwen3-next-80b-a3b", {"linear_num_value_heads": 0}, "linear_num_value_heads is 0"),
        (
            "qwen3-next-80b-a3b",
            {"layer_types": ["sliding_attention"] * 48},
            "it must be full_attention or linear_attention for each of the 48 layers",
        ),
        (
            "granite-4.0-h-small",
            {"layer_types": ["mamba"] * 40},
            "40 layers keep a state in place of KV",
        ),
        ("granite-4.0-h-small", {"layer_types": None}, "field 'layer_types' is missing"),
        ("nemotron-3-nano-30b-a3b", {"moe_latent_size": 1024}, "moe_latent_size is 1024"),
        ("glm-5", {"index_topk_freq": 4}, "layers share an indexer"),
        ("deepseek-v3.2", {"model_type": "deepseek_v4"}, "model_type is 'deepseek_v4'"),
        ("deepseek-v3.2", {"model_type": "deepseek_v3"}, "index_topk is a field that is not"),
        ("qwen3-next-80b-a3b", {"mamba_ssm_dtype": "fp8"}, "mamba_ssm_dtype is 'fp8'"),
    ],
)
def test_what_is_not_modelled_is_refused(
    name: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """By name, in a sentence."""
    with pytest.raises(InputError, match=message):
        own_model(tmp_path, published(name) | fields)


_ODD = st.sampled_from(
    [None, 0, -1, 1, 2.5, "x", "auto", [], [1], [[1]], ["full_attention"], {"a": 1}, True, 1e9]
)
_FIELDS = "layer_types no_rope_layers mlp_layer_types moe_layers hybrid_override_pattern model_type"


@MANY
@given(st.sampled_from(PUBLISHED), st.data())
def test_odd_fields_are_refused_or_read(row: dict[str, Any], data: st.DataObject) -> None:
    """A field with another type or value gives a sentence or a model, never a traceback."""
    config = json.loads(json.dumps(row["config"]))
    text = config.get("text_config", config)
    text[data.draw(st.sampled_from([*text, *_FIELDS.split()]))] = data.draw(_ODD)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(InputError):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InputWarning)
            (Path(folder) / "own.json").write_text(json.dumps(config))
            model = load_model(str(Path(folder) / "own.json"))
        assert model.kv_layers >= 1 and model.body_parameters > 0


@pytest.mark.parametrize("field", ["hidden_size_per_layer_input", "num_kv_shared_layers"])
def test_small_gemma_4_is_refused(field: str, tmp_path: Path) -> None:
    """Its layers have embeddings of their own, and share KV."""
    config = published("gemma-4-31b")
    with pytest.raises(InputError, match=f"{field} is 256; it must be 0"):
        own_model(tmp_path, config | {"text_config": config["text_config"] | {field: 256}})


@pytest.mark.parametrize("name", ["qwen3-next-80b-a3b", "deepseek-v3.2"])
def test_unmeasured_times_are_said(name: str, tmp_path: Path) -> None:
    """A warning names the layers whose times are an assumption."""
    (tmp_path / "own.json").write_text(json.dumps(published(name)))
    with pytest.warns(InputWarning, match="model own: times of .* are an assumption"):
        load_model(str(tmp_path / "own.json"))
