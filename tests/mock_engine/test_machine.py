"""Settings, and what they come to."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.mock_engine.app import MockEngine
from jaxserve.mock_engine.clock import ScaledClock
from jaxserve.mock_engine.machine import build_machine
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import BLOCK_TOKENS, kv_capacity_tokens
from jaxserve.sim.machine.models import load_model
from tests.mock_engine.engine_in_virtual_time import machine


def settings(**chosen: Any) -> MockEngineSettings:
    return MockEngineSettings("llama-3.1-8b", "h100-sxm-80gb", **chosen)


@pytest.mark.parametrize("depth", [0, 4])
def test_kv_blocks_are_those_of_the_gpu(depth: int) -> None:
    """What the simulators' memory model leaves, drafts included; fewer in less memory."""
    usual = build_machine(settings(batch_cap=512, speculation_depth=depth))
    gpu, model = load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b")
    expected = kv_capacity_tokens(gpu, model, 0, 1.0, depth > 0)
    assert usual.kv_blocks == int(expected // BLOCK_TOKENS)
    assert build_machine(settings(memory_utilization=0.6)).kv_blocks < usual.kv_blocks
    assert build_machine(settings(kv_blocks=3000)).kv_blocks == 3000


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"port": 70_000}, "--port is 70000; it must be a whole number from 0 to 65535"),
        ({"speed": 0.0}, "--speed is 0.0; it must be a number from 0.001 to 1000"),
        ({"tier": 3}, "--tier is 3; it must be a whole number from 0 to 2"),
        ({"kv_blocks": 0}, "--kv-blocks is 0; it must be a whole number from 1 on"),
        ({"acceptance": "x"}, "profile is 'x'; it must be one of"),
        ({"tensor_parallel": 3}, "tensor_parallel is 3; it must be a positive divisor"),
        ({"kv_blocks": 10}, "--max-model-len is 32768; the 10 KV blocks hold 160 tokens of one"),
    ],
)
def test_what_cannot_be_is_refused(chosen: dict[str, Any], sentence: str) -> None:
    """In one sentence."""
    with pytest.raises(InputError) as refused:
        build_machine(settings(**chosen))
    assert str(refused.value).startswith(sentence)


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"JAXSERVE_STATIC": '{"batch_cap": 9}'}, "JAXSERVE_STATIC: batch_cap is 9; this engine"),
        ({"JAXSERVE_STATIC": '{"priority_routing": 1}'}, "JAXSERVE_STATIC: priority_routing"),
        ({"JAXSERVE_STATIC": "{"}, "JAXSERVE_STATIC: the command is not JSON"),
        ({"JAXSERVE_CONTROL_TOKEN": "short"}, "JAXSERVE_CONTROL_TOKEN has 5 characters"),
    ],
)
def test_variables_are_checked_at_the_start(variables: dict[str, str], sentence: str) -> None:
    """As the plug-in checks them."""
    with pytest.raises(InputError) as refused:
        MockEngine(machine(), ScaledClock(1.0), variables)
    assert str(refused.value).startswith(sentence)


def test_static_values_are_in_force_without_a_lease() -> None:
    """Those of the variable."""
    engine = MockEngine(machine(), ScaledClock(1.0), {"JAXSERVE_STATIC": '{"batch_cap": 3}'})
    shown = engine.loop.state()["knobs"]["batch_cap"]
    assert (shown["now"], shown["static"], shown["most"]) == (3, 3, 8)
