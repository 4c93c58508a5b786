"""The packaged tables are what the code builds, and what it builds makes physical sense."""

from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.fields import Tier
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import kv_pool_bytes, weights_bytes
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.build import BUILT_IN, OUTPUT_TOKENS, build, build_built_in
from jaxserve.sim.table.file import LOAD_TEST_COLUMNS, read_table_file, table_names
from jaxserve.sim.table.grid import LEAST_BUCKETS, PROMPT_LENGTHS

GPU, MODEL = "a100-sxm-40gb", "llama-3.1-8b"
BUILT = build(GPU, MODEL)


@pytest.mark.parametrize(("model", "gpu", "tensor_parallel"), BUILT_IN)
def test_packaged_tables_are_up_to_date(model: str, gpu: str, tensor_parallel: int) -> None:
    """Data can not drift from code: ``jaxserve table build`` would write the same numbers."""
    packaged = read_table_file(f"{model}__{gpu}")
    fresh = build(gpu, model, tensor_parallel=tensor_parallel, buckets=LEAST_BUCKETS)
    assert packaged.metadata == fresh.metadata
    for name, values in fresh.columns.items():
        # Files round to float32, half a digit of which is 6e-8. The tail of TTFT has the root of a
        # wait, which is a difference: where nobody waits, float64's rounding (2e-16 of seconds) is
        # left of it, on each processor another one, and its root is up to 1e-7 of 20 ms.
        rtol = 1e-5 if name == "ttft_p99_ms" else 1e-7
        np.testing.assert_allclose(packaged.columns[name], values, rtol=rtol, err_msg=name)


def test_all_built_in_tables_are_packaged(tmp_path: Path) -> None:
    """The command writes exactly the tables that the package has."""
    paths = build_built_in(tmp_path)
    assert sorted(path.stem for path in paths) == sorted(table_names())
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_all_columns_are_positive() -> None:
    """No cell of any column is zero, negative or not a number."""
    for name, values in BUILT.columns.items():
        assert np.isfinite(values).all(), name
        assert (values > 0).all(), name
    assert (BUILT.columns["output_len"] == OUTPUT_TOKENS).all()


def test_primitives_are_the_cost_model() -> None:
    """Iteration times of the grid are those of the cost model in the metadata."""
    cost = BUILT.metadata.cost_model
    prompts = np.array(PROMPT_LENGTHS)
    itl_ms = BUILT.columns["itl_ms"][5, 0, 3, 2]  # batch 64, depth 4, INT4
    np.testing.assert_allclose(itl_ms, 1e3 * cost.decode_s(64, prompts, 4, 2))
    added_ms = BUILT.columns["prefill_added_ms"][2, 0, 0, 1]  # batch 8, depth 0, INT8
    np.testing.assert_allclose(added_ms, 1e3 * cost.prefill_added_s(8, prompts, 0, 1))
    alone_ms = BUILT.columns["prefill_ms"][7, 0, 1, 0]
    np.testing.assert_allclose(alone_ms, 1e3 * cost.prefill_alone_s(prompts, 0, depth=1))


def test_a_kv_budget_frees_no_memory() -> None:
    """Every cell holds the whole pool beside the weights; what differs is activations."""
    gpu, model = load_gpu(GPU), load_model(MODEL)
    memory = 2.0**30 * BUILT.columns["gpu_mem_gb"]
    for tier in Tier:
        held = kv_pool_bytes(gpu, model, tier, False) + weights_bytes(model, tier)
        assert (memory[:, :, 0, tier] > held).all()
    assert np.ptp(memory[0, :, 0], axis=0).max() < 1e6  # of 35 GiB


def test_load_test_columns_make_sense() -> None:
    """Memory never costs latency, quantising to INT8 pays at large batches, INT4 at small ones."""
    columns = BUILT.columns
    assert set(LOAD_TEST_COLUMNS) < set(columns)
    assert (np.diff(columns["ttft_p50_ms"], axis=1) <= 1e-6).all()
    assert (columns["ttft_p99_ms"] >= columns["ttft_p50_ms"]).all()
    fp16, int8, int4 = (columns["tpot_ms"][:, 4, 0, tier, 4] for tier in range(3))
    assert int4[0] < int8[0] < fp16[0]
    assert int8[-1] < fp16[-1] < int4[-1]


def test_price_follows_rent_and_throughput() -> None:
    """A thousand tokens cost at least the rent of the time they take, and not twice as much."""
    rent = load_gpu(GPU).price_usd_per_hour / 3600 * 1000 / BUILT.columns["tps"]
    ratio = BUILT.columns["cost_per_1k"] / rent
    assert (ratio > 1.0).all()
    assert (ratio < 1.1).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_name": "tpu"}, r"gpu is 'tpu'; it must be one of a100-sxm-40gb"),
        ({"model_name": "gpt"}, r"model is 'gpt'"),
        ({"model_name": "llama-3.1-70b"}, r"llama-3.1-70b does not fit on 1 x a100-sxm-40gb"),
        ({"tensor_parallel": 3}, r"tensor_parallel is 3; it must be a positive divisor"),
        ({"token_budget": 10}, r"token_budget is 10; it must be a whole number from 64 to 65536"),
        ({"output_tokens": 1}, r"output_tokens is 1; it must be a whole number from 2 to 65536"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    """What can not be built is refused with the name, the value and what is allowed."""
    with pytest.raises(InputError, match=message):
        build(**({"gpu_name": GPU, "model_name": MODEL} | arguments))
