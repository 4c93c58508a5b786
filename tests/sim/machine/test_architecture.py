"""Promises of models with experts, latent attention and windows."""

import dataclasses
from typing import Any

import pytest

from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack, serve


def _served(name: str, **layout: Any) -> LargeModel:
    _, model = serve("h200-sxm-141gb", name, Stack())
    assert isinstance(model, LargeModel)
    return dataclasses.replace(model, **layout)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("gpt-oss-120b", 116.8, 5.1),
        ("qwen3-30b-a3b", 30.5, 3.3),
        ("qwen3-235b-a22b", 235.1, 22.2),
        ("deepseek-v3", 671.0, 37.6),
        ("mixtral-8x7b", 46.7, 12.9),
    ],
)
def test_parameters_are_those_of_the_model_card(name: str, billions: float, active: float) -> None:
    """All parameters, and those of one token; model cards count embeddings in different ways."""
    model = _served(name)
    outer = model.embedding_parameters + model.head_parameters
    total = model.body_parameters + model.expert_parameters + outer
    assert total / 1e9 == pytest.approx(billions, rel=0.005)
    assert (model.active_parameters + outer / 2) / 1e9 == pytest.approx(active, rel=0.1)


def test_a_dense_model_keeps_its_sizes_when_it_is_served() -> None:
    """The served form has the parameters, widths and bf16 KV of the model it is of."""
    plain, served = load_model("llama-3.1-8b"), _served("llama-3.1-8b")
    for name in ("body_parameters", "attention_width", "kv_bytes_per_token", "draft_parameters"):
        assert getattr(served, name) == getattr(plain, name), name
    assert served.elementwise_bytes_per_token(2) == plain.elementwise_bytes_per_token(2)
    assert served.kv_share(16) == plain.kv_share(16) == 1 / 8


def test_latent_attention_keeps_one_vector_per_token() -> None:
    """DeepSeek's published 576 numbers per token and layer, which a group copies unless each of
    its GPUs attends for sequences of its own."""
    model = _served("deepseek-v3")
    assert model.kv_bytes_per_token == 61 * 576 * 2
    assert model.kv_share(8) == 1
    assert dataclasses.replace(model, attention_data_parallel=True).kv_share(8) == 1 / 8


def test_fp8_halves_the_cache_and_windows_stop_it_from_growing() -> None:
    """Bytes that one more token of context keeps."""
    model = _served("gpt-oss-120b")
    assert model.kv_bytes_per_token == 18 * 2 * 8 * 64 * 2
    halved = dataclasses.replace(model, kv_format="fp8")
    assert halved.kv_bytes_per_token == model.kv_bytes_per_token / 2
