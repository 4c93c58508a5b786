"""Promises of the memory model."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.fields import Tier
from jaxserve.sim.machine import memory
from jaxserve.sim.machine.architecture import LargeModel, LinearAttention, SlidingWindow
from jaxserve.sim.machine.hardware import GIB, gpu_names, load_gpu
from jaxserve.sim.machine.models import load_model

FP16, INT8, INT4 = Tier
MODEL = load_model("llama-3.1-8b")
A100_40 = load_gpu("a100-sxm-40gb")

fractions = st.floats(0.1, 1.0)
tiers = st.integers(0, 2)


def _used_gb(batch: int, depth: int, prompt_tokens: int = 0, tier: int = FP16) -> float:
    """GiB in use on the 40 GB device during one iteration."""
    rows = batch * (depth + 1)
    used = memory.memory_used_bytes(A100_40, MODEL, tier, depth > 0, rows + prompt_tokens, rows)
    return used / GIB


def test_weights_by_hand() -> None:
    """Llama-3.1-8B takes 2 bytes per parameter in FP16 and keeps its vocabulary bf16 in others."""
    body, outer = 6_979_321_856, 2 * 525_336_576
    assert memory.weights_bytes(MODEL, FP16) == 2 * (body + outer)
    assert memory.weights_bytes(MODEL, INT8) == body + 2 * outer
    assert memory.weights_bytes(MODEL, INT4) == pytest.approx(body * 66 / 128 + 2 * outer)


def test_pool_of_the_task_device() -> None:
    """The FP16 8B model has about 150 to 180 thousand KV tokens on the 40 GB A100."""
    capacity = memory.kv_capacity_tokens(A100_40, MODEL, FP16, 1.0, speculating=False)
    assert 150_000 < capacity < 180_000


def test_ordinary_settings_fit_the_device() -> None:
    """Every batch cap fits without speculation and with a moderate depth."""
    device_gb = A100_40.memory_bytes / GIB
    for tier in (FP16, INT8, INT4):
        assert _used_gb(512, 0, 1536, tier) < device_gb
        assert _used_gb(128, 4, 1408, tier) < device_gb
        assert _used_gb(512, 2, 512, tier) < device_gb


def test_logits_of_deep_speculation_run_out_of_memory() -> None:
    """Batch 512 at depth 8 exceeds the device; half of it does not."""
    device_gb = A100_40.memory_bytes / GIB
    assert _used_gb(512, 8) > device_gb
    assert _used_gb(256, 8) < device_gb


def test_task_limits_bind() -> None:
    """Limits of 36 and 38 GiB are crossed by aggressive settings and kept by moderate ones."""
    assert _used_gb(512, 0, 1536) > 36 > _used_gb(32, 0, 1536)
    assert _used_gb(512, 4) > 38 > _used_gb(256, 4, 768)


@given(st.sampled_from(gpu_names()), tiers, fractions, st.booleans())
def test_capacity_is_linear_in_the_fraction(
    gpu_name: str, tier: int, fraction: float, speculating: bool
) -> None:
    """Capacity is the fraction of the pool, more for smaller weights, less beside a draft."""
    gpu = load_gpu(gpu_name)

    def capacity(share: float, in_tier: int, drafting: bool) -> float:
        return memory.kv_capacity_tokens(gpu, MODEL, in_tier, share, drafting)

    at = capacity(fraction, tier, speculating)
    assert at == pytest.approx(fraction * capacity(1.0, tier, speculating))
    assert capacity(fraction, tier, True) < capacity(fraction, tier, False)
    if tier < INT4:
        assert capacity(fraction, tier + 1, speculating) > at


@given(tiers, st.integers(0, 8192), st.integers(0, 4608), st.booleans())
def test_memory_grows_with_work(tier: int, tokens: int, rows: int, speculating: bool) -> None:
    """More tokens or logits use more."""

    def used(of_tokens: int, of_rows: int) -> float:
        return memory.memory_used_bytes(A100_40, MODEL, tier, speculating, of_tokens, of_rows)

    base = used(tokens, rows)
    assert used(tokens + 1, rows) > base
    assert used(tokens, rows + 1) > base


def test_the_nominal_iteration_fills_the_planned_memory() -> None:
    """A full chunk with nominal logits uses what the engine planned, drafting too."""
    for speculating in (False, True):
        used = memory.memory_used_bytes(A100_40, MODEL, FP16, speculating, 2048, 512)
        assert used == pytest.approx(0.92 * A100_40.memory_bytes)


def test_arrays_are_accepted() -> None:
    """Fractions and token counts may be arrays, as the simulators pass them."""
    capacity = memory.kv_capacity_tokens(A100_40, MODEL, FP16, np.array([0.5, 1.0]), False)
    assert capacity[1] == pytest.approx(2 * capacity[0])


def test_a_model_that_does_not_fit_is_refused() -> None:
    """70B in FP16 does not fit one 80 GB GPU, and does fit four."""
    gpu, model = load_gpu("h100-sxm-80gb"), load_model("llama-3.1-70b")
    with pytest.raises(InputError, match=r"llama-3\.1-70b does not fit on 1 x h100-sxm-80gb"):
        memory.kv_capacity_tokens(gpu, model, FP16, 1.0, False)
    assert memory.kv_capacity_tokens(gpu, model, FP16, 1.0, False, tensor_parallel=4) > 100_000


@given(st.floats(1, 1e5), st.floats(0, 8192), st.floats(0, 12), st.floats(0, 20_000))
def test_the_longest_sequence_fills_the_pool(
    context: float, window: float, share: float, state: float
) -> None:
    """A pool as large as a sequence holds just this one."""
    sequence = memory.SequenceKv(window, share, state)
    pool = context + sequence.beside(context)
    assert sequence.longest(pool) == pytest.approx(context, rel=1e-6)
    assert memory.longest_request_tokens(pool, None, sequence) <= context + 1 + 1e-3


@pytest.mark.parametrize(
    ("window", "state", "expected"),
    [
        (0, 0, (30, 1, 0, 0)),
        (20, 0, (10, 1, 2, 0)),  # the example of vLLM's hybrid KV cache manager
        (25, 0, (5, 1, 5, 0)),
        (24, 0, (6, 1, 4, 0)),
        (17, 0, (17, 1, 1, 0)),  # nearly as many of both: one group of each, padded
        (0, 23, (7, 1, 0, 4)),  # the last group has two layers of padding
        (4, 0, (4, 7, 1, 0)),
    ],
)
def test_groups_of_layers(window: int, state: int, expected: tuple[int, ...]) -> None:
    """Layers are grouped as vLLM groups them, and padding takes room."""
    model = LargeModel(
        "any",
        30,
        64,
        4,
        2,
        16,
        128,
        512,
        window=SlidingWindow(window, 128) if window else None,
        linear=LinearAttention(state, 1, 1, 64) if state else None,
    )
    layers, full, windows, states = expected
    held = memory.kv_bytes_per_token(model, False)
    assert held == layers * full * model.kv_bytes_per_token_layer
    sequence = memory.sequence_kv(model)
    if sequence is None:
        assert not window and not state
        return
    assert sequence.window_share == pytest.approx(windows / full)
    blocks = states / full * memory.BLOCK_TOKENS
    assert sequence.state_tokens == pytest.approx(blocks)


def test_a_prefix_cache_of_states_is_refused() -> None:
    """Windows can have one."""
    memory.check_prefix_caching(True, memory.SequenceKv(1024.0, 5.0, 0.0))
    memory.check_prefix_caching(False, memory.SequenceKv(0.0, 0.0, 800.0))
    with pytest.raises(InputError, match="leave it off"):
        memory.check_prefix_caching(True, memory.SequenceKv(0.0, 0.0, 800.0))
