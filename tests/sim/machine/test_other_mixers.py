"""Times of layers with states, indexers and other heads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jaxserve.sim.machine.cost_json import cost_from_dict, cost_to_dict
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import kv_capacity_tokens
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.machine.tabulated import TabulatedTimer
from tests.sim.machine.test_model_mixers import published

pytestmark = pytest.mark.filterwarnings("ignore::jaxserve.errors.InputWarning")
KINDS = {"qwen3-next-80b-a3b": 2, "glm-5": 8, "gemma-4-31b": 1, "gemma-3-27b": 1}

PLAIN = {
    "codellama-34b": (23.712, 5406299.05),
    "deepseek-v3": (52.1925793, 749232.047),
    "gpt-oss-120b": (20.556, 26436634.9),
    "llama-2-70b": (39.52, 3136009.83),
    "llama-2-7b": (15.808, 2080716.14),
    "llama-3.1-70b": (39.52, 3116758.63),
    "llama-3.1-8b": (15.808, 8282616.58),
    "mixtral-8x7b": (18.272, 8016304.58),
    "qwen2.5-32b": (31.616, 4040884.29),
    "qwen3-235b-a22b": (53.674, 2227336.37),
    "qwen3-30b-a3b": (27.408, 5407403.05),
    "qwen3-32b": (31.616, 4040910.29),
}
"""Milliseconds of an iteration, and KV tokens of the pool, with the constants as last fitted."""


@pytest.mark.parametrize("name", PLAIN)
def test_packaged_models_are_as_before(name: str) -> None:
    """Other kinds of layers changed nothing for models without them."""
    gpu, model = serve("h200-sxm-141gb", name, Stack(formats=("fp8", "fp8", "int4")))
    load = {"decode_seqs": 64, "kv_tokens": 64 * 9000.0, "chunks": ((512, 3000),)}
    found = 1e3 * CostModel.of(gpu, model, 8).iteration_s(**load)
    pool = kv_capacity_tokens(gpu, model, 0, 1.0, False, 8)
    assert (found, pool) == pytest.approx(PLAIN[name], rel=1e-7)


def _cost(name: str, folder: Path) -> CostModel:
    (folder / "own.json").write_text(json.dumps(published(name)))
    stack = Stack(formats=("fp8", "fp8", "int4"))
    return CostModel.of(*serve("h200-sxm-141gb", str(folder / "own.json"), stack), KINDS[name])


@pytest.mark.parametrize("name", KINDS)
def test_terms_are_kept_and_scaled(name: str, tmp_path: Path) -> None:
    """Through JSON, by ``slower``, and in the tabulated timer."""
    cost = _cost(name, tmp_path)
    assert cost_from_dict(json.loads(json.dumps(cost_to_dict(cost)))) == cost
    for tokens in (700.0, 90_000.0):
        load = {"decode_seqs": 7, "kv_tokens": tokens, "chunks": ((300, 5000), (20, 0))}
        expected = cost.iteration_s(**load)
        assert cost.slower(2.0).iteration_s(**load) == pytest.approx(2 * expected)
        assert TabulatedTimer(cost).iteration_s(**load) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_context_costs_less_than_with_full_attention(name: str, tmp_path: Path) -> None:
    """Longer contexts take longer, and less so than where every layer reads them."""
    cost = _cost(name, tmp_path)
    assert cost.beyond is not None
    plain_terms = dataclasses.replace(cost.beyond, window_layers=0.0, mixers=None)
    plain = dataclasses.replace(cost, beyond=plain_terms)
    context = np.array([4_000.0, 16_000.0, 64_000.0])
    for ours, theirs in (
        (cost.decode_attention_s(8, 8 * context), plain.decode_attention_s(8, 8 * context)),
        (cost.prefill_attention_s(512, context), plain.prefill_attention_s(512, context)),
    ):
        assert (np.diff(ours) > 0).all()
        assert (np.diff(ours) < np.diff(theirs)).all()


def test_a_state_is_read_and_written_whatever_the_context(tmp_path: Path) -> None:
    """Without full attention, a step of Qwen3-Next's 36 layers moves 2.2 MB per sequence each."""
    cost = _cost("qwen3-next-80b-a3b", tmp_path)
    assert cost.beyond is not None and cost.beyond.mixers is not None
    gpu, _ = serve("h200-sxm-141gb", "llama-3.1-8b", None)
    rate = gpu.bandwidth_bytes_per_s * gpu.attention.bandwidth_efficiency
    mixers = cost.beyond.mixers
    assert mixers.state_layers == 36
    assert mixers.state_s_per_sequence * rate == pytest.approx(2 * 1_097_728 / 2)


def test_attention_reads_the_selected_tokens(tmp_path: Path) -> None:
    """Up to 2,048 tokens GLM-5 reads all; beyond, only its indexer reads more."""
    mixers = _cost("glm-5", tmp_path).beyond.mixers  # type: ignore[union-attr]
    assert mixers is not None
    kv = np.array([1_000.0, 2_048.0, 100_000.0])
    read_s = mixers.read_s(1e-9, np.ones(3), kv) - mixers.index_s_per_token * kv
    assert read_s == pytest.approx([1e-6, 2.048e-6, 2.048e-6])
