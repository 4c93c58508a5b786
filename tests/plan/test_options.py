"""Engines that hold the model, and inputs that are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.plan.inputs import PlanInputs, PlanObjective, gpu_prices, steady_traffic
from jaxserve.plan.options import engine_options
from jaxserve.sim.traffic.traces import Trace

LOOSE = PlanObjective(5.0, 0.5)


def _inputs(model: str, longest: int = 1000, **changes: object) -> PlanInputs:
    trace = Trace(np.array([0.0, 1.0]), np.array([longest, 10]), np.array([10, 10]))
    fields: dict[str, object] = {"prices": {"h100-sxm-80gb": 1.0}} | changes
    return PlanInputs(model, trace, "two requests", LOOSE, **fields)  # type: ignore[arg-type]


def test_memory_decides() -> None:
    """A 70B model needs several GPUs or a smaller format, and the rest says what its memory
    leaves."""
    options, excluded = engine_options(_inputs("llama-3.1-70b"))
    sizes = {(each.weight_format, each.tensor_parallel) for each in options}
    assert ("bf16", 1) not in sizes
    assert {("bf16", 4), ("fp8", 2), ("fp8", 8)} <= sizes
    assert any("bf16" in each.name and "memory" in each.reason for each in excluded)


def test_the_longest_request_decides() -> None:
    """The pool must hold it, as an engine refuses to start otherwise."""
    short, _ = engine_options(_inputs("llama-3.1-70b", 1000))
    long, _ = engine_options(_inputs("llama-3.1-70b", 120_000))
    assert {each.name for each in long} < {each.name for each in short}


def test_experts_may_be_divided() -> None:
    """A model with experts has both layouts, and none on a GPU of which nothing was measured."""
    options, excluded = engine_options(
        _inputs("qwen3-30b-a3b", prices={"h100-sxm-80gb": 1.0, "a100-sxm-80gb": 1.0})
    )
    assert {each.attention_data_parallel for each in options} == {False, True}
    assert all(each.gpu == "h100-sxm-80gb" for each in options)
    assert any(each.name.startswith("a100") for each in excluded)


def test_drafts_are_an_option_of_every_engine() -> None:
    """A draft takes memory, and its acceptance adds to the doubt; without --draft there is none."""
    options, _ = engine_options(_inputs("llama-3.1-8b", draft="gsm8k/eagle"))
    plain, _ = engine_options(_inputs("llama-3.1-8b"))
    assert [each.name for each in options if each.draft is None] == [each.name for each in plain]
    pairs = list(zip(options[::2], options[1::2], strict=True))
    for without, drafted in pairs:
        assert without.drafts is None and drafted.drafts is not None
        assert drafted.kv_tokens(64, 2048) < without.kv_tokens(64, 2048)
        assert drafted.doubt.error > without.doubt.error


def test_depths_follow_the_times() -> None:
    """Other times, other depths: arithmetic ten times slower leaves less for drafts."""
    drafted = engine_options(_inputs("llama-3.1-8b", draft="gsm8k/eagle"))[0][1]
    slow = tuple(10 * each for each in drafted.cost.linear_s_per_token)
    other = replace(drafted, cost=replace(drafted.cost, linear_s_per_token=slow))
    assert drafted.drafts and other.drafts
    assert sum(other.drafts.depths) < sum(drafted.drafts.depths)


def test_drafts_that_nothing_is_known_of() -> None:
    """Methods without times, and models with experts."""
    with pytest.raises(InputError, match=r"--draft is 'cnn/ngram'; it must be one of .*cnn/eagle"):
        _inputs("llama-3.1-8b", draft="cnn/ngram")
    with pytest.raises(InputError, match="gpt-oss-120b has experts; leave --draft out"):
        _inputs("gpt-oss-120b", draft="cnn/eagle")


def test_no_gpu_holds_the_model() -> None:
    """The error names the nearest."""
    with pytest.raises(InputError, match=r"no GPU of h100-sxm-80gb holds deepseek-v3"):
        engine_options(_inputs("deepseek-v3", formats=("fp8",)))


def test_a_request_longer_than_the_model(tmp_path: Path) -> None:
    """The config.json says how long contexts may be."""
    config = {
        "model_type": "llama",
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 8, "num_key_value_heads": 4, "vocab_size": 32_000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "small.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    assert _inputs(str(path), 1500).model_length == 2048
    with pytest.raises(InputError, match="the context of small has 2,048"):
        _inputs(str(path), 2048)


def test_prices(tmp_path: Path) -> None:
    """Prices of a file replace the packaged prices; GPU kinds without a price are left out."""
    path = tmp_path / "prices.json"
    path.write_text('{"h100-sxm-80gb": 2.0}', encoding="utf-8")
    prices, unpriced = gpu_prices(None, path)
    assert prices == {"h100-sxm-80gb": 2.0} and "l40s-48gb" in unpriced
    assert gpu_prices(["h100-sxm-80gb"], None)[0]["h100-sxm-80gb"] > 0
    with pytest.raises(InputError, match="has no price of l40s-48gb"):
        gpu_prices(["h100-sxm-80gb", "l40s-48gb"], path)
    path.write_text('{"h100-sxm": 2.0}', encoding="utf-8")
    with pytest.raises(InputError, match="names the GPU h100-sxm, which is not known"):
        gpu_prices(None, path)


def test_steady_traffic_has_its_rate() -> None:
    """Within chance, over some minutes at least."""
    trace, _ = steady_traffic(5, 100, 10)
    assert trace.duration_s >= 300
    assert len(trace) / trace.duration_s == pytest.approx(5, rel=0.1)
