"""Promises of the models by name."""

import dataclasses

import pytest

from jaxserve.datafiles import load_json
from jaxserve.errors import InputError
from jaxserve.sim.machine.models import load_model, model_names


def test_every_named_model_loads() -> None:
    """Those that the documentation names, each from a file that says where its sizes come from."""
    dense = {"llama-3.1-8b", "llama-3.1-70b", "qwen2.5-32b", "qwen3-32b"}
    dense |= {"llama-2-7b", "llama-2-70b", "codellama-34b"}
    experts = {"gpt-oss-120b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "mixtral-8x7b"}
    assert set(model_names()) == dense | experts
    for name in model_names():
        assert load_model(name).name == name
        assert load_json(f"models/{name}.json")["source"]


def test_llama_8b_has_its_parameter_counts() -> None:
    """Parameter counts derived from the architecture are the model's published ones."""
    model = load_model("llama-3.1-8b")
    assert model.body_parameters == 6_979_321_856
    assert model.head_parameters == 525_336_576
    assert model.kv_bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.6),
        ("qwen2.5-32b", 32.8),
        ("llama-2-7b", 6.74),
        ("llama-2-70b", 69.0),
        ("codellama-34b", 33.7),
    ],
)
def test_total_parameters_match_the_model_card(name: str, billions: float) -> None:
    """Body, head and embedding add up to the model card's size (norms and biases are tiny)."""
    model = load_model(name)
    total = model.body_parameters + model.head_parameters + model.embedding_parameters
    assert total / 1e9 == pytest.approx(billions, rel=0.003)


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("llama-2-7b", 4096),
        ("llama-2-70b", 4096),
        ("codellama-34b", 16_384),
        ("mixtral-8x7b", 32_768),
        ("qwen2.5-32b", 32_768),
        ("qwen3-32b", 40_960),
        ("qwen3-235b-a22b", 40_960),
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 131_072),
        ("gpt-oss-120b", 131_072),
        ("deepseek-v3", 163_840),
        ("qwen3-30b-a3b", 262_144),
    ],
)
def test_context_lengths_are_the_published_ones(name: str, tokens: int) -> None:
    """``max_position_embeddings`` of each model's config.json."""
    assert load_model(name).context_tokens == tokens


def test_digests_do_not_depend_on_the_context_length() -> None:
    """They are of the ``repr``: trained weights stay those of the model."""
    model = load_model("llama-3.1-8b")
    assert repr(dataclasses.replace(model, context_tokens=None)) == repr(model)


def test_an_unknown_name_is_answered_with_the_allowed_ones() -> None:
    """It raises with the list of models."""
    with pytest.raises(InputError, match=r"model is 'gpt'; it must be one of codellama-34b"):
        load_model("gpt")
