"""A deployment resolved to constants: they say what the memory model says."""

import dataclasses

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.fields import MAX_GPUS
from jaxserve.sim.machine.deployment import DeploymentSettings, build_deployment
from jaxserve.sim.machine.hardware import GIB, load_gpu
from jaxserve.sim.machine.memory import kv_capacity_tokens, memory_used_bytes
from jaxserve.sim.machine.models import load_model

GPU, MODEL = load_gpu("a100-sxm-40gb"), load_model("llama-3.1-8b")
BUILT = build_deployment(GPU, MODEL, DeploymentSettings())


@pytest.mark.parametrize("tier", [0, 1, 2])
@pytest.mark.parametrize("depth", [0, 8])
def test_memory_of_an_iteration_is_that_of_the_memory_model(depth: int, tier: int) -> None:
    """Its parts add up to the bytes in use, and a full verify batch exceeds the device in FP16."""
    rows, drafting = 512 * (depth + 1), int(depth > 0)
    used_gib = float(
        BUILT.weights_gib[tier]
        + BUILT.activation_base_gib
        + drafting * BUILT.draft_gib
        + BUILT.kv_pool_gib[tier, drafting]
        + rows * (BUILT.activation_gib_per_token + BUILT.logits_gib_per_row)
    )
    expected = memory_used_bytes(GPU, MODEL, tier, depth > 0, rows, rows) / GIB
    assert used_gib == pytest.approx(expected, rel=1e-5)
    if tier == 0:
        assert (used_gib > float(BUILT.device_gib)) == (depth == 8)
    capacity = kv_capacity_tokens(GPU, MODEL, tier, 1.0, depth > 0)
    assert float(BUILT.kv_pool_tokens[tier, drafting]) == pytest.approx(capacity, rel=1e-6)


@pytest.mark.parametrize("told", [1_000, 10_000_000])
def test_a_pool_that_the_engine_tells(told: int) -> None:
    """Holds that many tokens in every tier, and takes no memory that is not there."""
    built = build_deployment(GPU, MODEL, DeploymentSettings(kv_pool_tokens=told))
    assert (np.asarray(built.kv_pool_tokens) == told).all()
    assert (built.kv_pool_gib <= BUILT.kv_pool_gib * 1.000001).all()
    share = told / BUILT.kv_pool_tokens
    expected = BUILT.kv_pool_gib * share.clip(max=1.0)
    assert np.asarray(built.kv_pool_gib) == pytest.approx(np.asarray(expected), rel=1e-5)


def test_a_group_is_paid_for_as_a_whole() -> None:
    """Power and price are those of all its GPUs, memory that of one."""
    group = build_deployment(GPU, MODEL, DeploymentSettings(tensor_parallel=2))
    for name in ("idle_w", "max_w", "usd_per_gpu_s"):
        assert float(getattr(group, name)) == pytest.approx(2.0 * float(getattr(BUILT, name)))
    assert float(group.weights_gib[0]) == pytest.approx(0.5 * float(BUILT.weights_gib[0]))
    assert float(group.device_gib) == float(BUILT.device_gib)


@pytest.mark.parametrize("count", [0, MAX_GPUS + 1])
def test_impossible_numbers_of_gpus_are_refused(count: int) -> None:
    """The error says how many there may be."""
    with pytest.raises(
        InputError, match=f"num_gpus is {count}; it must be a whole number from 1 to {MAX_GPUS}"
    ):
        dataclasses.replace(DeploymentSettings(), num_gpus=count)
