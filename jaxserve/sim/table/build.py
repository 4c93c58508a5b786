"""Fills the grid of a latency table from a cost model."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.datafiles import data_dir
from jaxserve.fields import TOKEN_BUDGETS
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.energy import dollars, energy_j, iteration_bytes, iteration_flops
from jaxserve.sim.machine.hardware import (
    GIB,
    EngineSettings,
    Gpu,
    LlmModel,
    gpu_names,
)
from jaxserve.sim.machine.memory import kv_capacity_tokens, memory_used_bytes, sequence_kv
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.table.closed_loop import ClosedLoop, closed_loop
from jaxserve.sim.table.extent import Extent
from jaxserve.sim.table.file import (
    LOAD_TEST_COLUMNS,
    PRIMITIVE_COLUMNS,
    Calibration,
    TableFile,
    TableMetadata,
    write_table_file,
)
from jaxserve.sim.table.grid import (
    BATCH_SIZES,
    KV_BUDGETS,
    LEAST_BUCKETS,
    PROMPT_LENGTHS,
    QUANT_TIERS,
    SPEC_LENGTHS,
    grid_shape,
)

OUTPUT_TOKENS = 256
"""Output length of the closed-loop columns."""

ACCEPTANCE = "sharegpt/eagle"
"""Draft-acceptance profile of the closed-loop columns."""

BUILT_IN = (
    ("llama-3.1-8b", "a100-sxm-40gb", 1),
    ("llama-3.1-8b", "a100-sxm-80gb", 1),
    ("llama-3.1-8b", "h100-sxm-80gb", 1),
    ("llama-3.1-8b", "h200-sxm-141gb", 1),
    ("llama-3.1-8b", "l40s-48gb", 1),
    ("llama-3.1-70b", "h100-sxm-80gb", 4),
    ("qwen2.5-32b", "h100-sxm-80gb", 2),
)
"""Model, GPU and tensor parallelism of the tables that come with the package."""

_KERNEL_SOURCE = "cost model from measured kernels; sources in the data files of GPU and model"


def build(
    gpu_name: str,
    model_name: str,
    *,
    tensor_parallel: int = 1,
    token_budget: int = EngineSettings.token_budget,
    output_tokens: int = OUTPUT_TOKENS,
    buckets: int = len(PROMPT_LENGTHS),
    stack: Stack | None = None,
) -> TableFile:
    """Table of a model on a GPU, from the constants in their data files.

    Args:
      gpu_name, model_name: names of their data files.
      tensor_parallel: GPUs that share every layer.
      token_budget: tokens that one iteration may process.
      output_tokens: output length of the closed-loop columns.
      stack: what serves the model; see ``jaxserve.sim.machine.stack``.
      buckets: lengths to write out, the shortest of ``PROMPT_LENGTHS``.

    Raises:
      InputError: unknown name, a model that does not fit, or a number out of range.
    """
    gpu, model = serve(gpu_name, model_name, stack)
    if stack is None and isinstance(model, LargeModel):
        stack = Stack()
    metadata = TableMetadata(
        model=model.name,
        hardware=gpu.name,
        engine="continuous batching with chunked prefill",
        source=_KERNEL_SOURCE if gpu_name in gpu_names() else f"cost model of {gpu_name}",
        fit_error=None,
        tensor_parallel=tensor_parallel,
        token_budget=token_budget,
        acceptance=ACCEPTANCE,
        cost_model=CostModel.of(gpu, model, tensor_parallel),
        stack=stack,
    )
    return fill_grid(metadata, gpu, model, output_tokens, buckets)


def build_built_in(directory: Path | None = None) -> list[Path]:
    """Writes every table of ``BUILT_IN``; returns their paths. Default: the packaged tables.

    They leave longer lengths to their cost model: a task's digest is of the file.
    """
    directory = data_dir() / "tables" if directory is None else directory
    paths = []
    for model, gpu, tensor_parallel in BUILT_IN:
        paths.append(directory / f"{model}__{gpu}.parquet")
        file = build(gpu, model, tensor_parallel=tensor_parallel, buckets=LEAST_BUCKETS)
        write_table_file(paths[-1], file)
    return paths


def fill_grid(
    metadata: TableMetadata,
    gpu: Gpu,
    model: LlmModel,
    output_tokens: int = OUTPUT_TOKENS,
    buckets: int = len(PROMPT_LENGTHS),
) -> TableFile:
    """Fills all cells of the grid from ``metadata.cost_model``, memory and money from ``gpu`` and
    ``model``.

    Args:
      metadata: description of the table, with its cost model.
      gpu: memory and price.
      model: shapes of the layers.
      output_tokens: output length of the load test's columns, tokens.
      buckets: prompt lengths, the shortest of ``PROMPT_LENGTHS``.

    Raises:
      InputError: the model does not fit, or a number is out of range.
    """
    checks.whole("token_budget", metadata.token_budget, *TOKEN_BUDGETS)
    checks.whole("output_tokens", output_tokens, 2, 65_536)
    shape, prompts = grid_shape(buckets), PROMPT_LENGTHS[:buckets]
    columns = {name: np.empty(shape) for name in (*LOAD_TEST_COLUMNS, *PRIMITIVE_COLUMNS)}
    for tier in QUANT_TIERS:
        tier_columns = _tier_columns(metadata, gpu, model, output_tokens, tier, prompts)
        for name, values in tier_columns.items():
            columns[name][:, :, :, tier] = values
    columns["output_len"] = np.full(shape, float(output_tokens))
    return TableFile(metadata, columns)


def fill_measured(
    cost: CostModel,
    gpu: Gpu,
    model: LlmModel,
    *,
    source: str,
    fit_error: float,
    token_budget: int,
    calibration: Calibration | None = None,
    measured: Extent | None = None,
) -> TableFile:
    """``fill_grid`` from a cost model that was fitted to measurements.

    Args:
      source: what was measured.
      fit_error: mean relative error of the fit where it is not shown what it is compared to.
      token_budget: tokens that one iteration may process.
      calibration: what of the engine was measured beside its times.
      measured: what a load test covered.
    """
    metadata = TableMetadata(
        model=model.name,
        hardware=gpu.name,
        engine="as measured",
        source=source,
        fit_error=fit_error,
        tensor_parallel=cost.tensor_parallel,
        token_budget=token_budget,
        acceptance=ACCEPTANCE,
        cost_model=cost,
        calibration=calibration,
        measured=measured,
    )
    return fill_grid(metadata, gpu, model)


def _tier_columns(
    metadata: TableMetadata,
    gpu: Gpu,
    model: LlmModel,
    output_tokens: int,
    tier: int,
    prompts: tuple[int, ...],
) -> dict[str, NDArray[np.float64]]:
    """Columns of one tier; every array broadcasts to [batch, kv, spec, prompt]."""
    cost, budget, tp = metadata.cost_model, metadata.token_budget, metadata.tensor_parallel
    batch, kv, depth, prompt = np.ix_(
        *(np.asarray(axis, float) for axis in (BATCH_SIZES, KV_BUDGETS, SPEC_LENGTHS, prompts))
    )
    measured = metadata.calibration
    by_depth = tokens_per_step(metadata.acceptance)[list(SPEC_LENGTHS)][:, None]
    if measured is not None and measured.kv_pool_tokens is not None:
        capacity = kv * measured.kv_pool_tokens
    else:
        capacity = np.where(
            depth > 0,
            kv_capacity_tokens(gpu, model, tier, kv, True, tp),
            kv_capacity_tokens(gpu, model, tier, kv, False, tp),
        )
    loop = closed_loop(
        cost,
        batch,
        prompt,
        output_tokens,
        depth=depth,
        tier=tier,
        tokens_per_step=by_depth,
        kv_tokens=capacity,
        token_budget=budget,
        sequence_kv=sequence_kv(model, tp),
    )
    rows = loop.batch * (depth + 1)
    tokens = np.minimum(
        rows + np.maximum(loop.prompts_per_iteration, 1.0) * prompt, np.maximum(budget, rows)
    )
    memory = np.where(
        depth > 0,
        memory_used_bytes(gpu, model, tier, True, tokens, rows, tp),
        memory_used_bytes(gpu, model, tier, False, tokens, rows, tp),
    )
    usd_per_s = _usd_per_s(metadata, gpu, model, loop, tier, rows, prompt, output_tokens)
    tokens_per_s = loop.requests_per_s * output_tokens
    return {
        "ttft_p50_ms": 1e3 * loop.ttft_p50_s,
        "ttft_p99_ms": 1e3 * loop.ttft_p99_s,
        "tpot_ms": 1e3 * loop.tpot_s,
        "tps": tokens_per_s,
        "gpu_mem_gb": memory / GIB,
        "cost_per_1k": 1e3 * usd_per_s / tokens_per_s,
        "prefill_ms": 1e3 * cost.prefill_alone_s(prompt, tier, budget, depth),
        "itl_ms": 1e3 * cost.decode_s(batch, prompt, depth, tier),
        "prefill_added_ms": 1e3 * cost.prefill_added_s(batch, prompt, depth, tier, budget),
    }


def _usd_per_s(
    metadata: TableMetadata,
    gpu: Gpu,
    model: LlmModel,
    loop: ClosedLoop,
    tier: int,
    rows: NDArray[np.float64],
    prompt: NDArray[np.float64],
    output_tokens: int,
) -> NDArray[np.float64]:
    """Rent and electricity of the tensor-parallel group per second of the closed loop."""
    tp = metadata.tensor_parallel * model.pipeline_parallel
    context = prompt + output_tokens / 2
    prompt_tokens = loop.prompts_per_iteration * prompt
    flops = iteration_flops(
        gpu, model, tier, rows + prompt_tokens, rows, rows * context + prompt_tokens * prompt / 2
    )
    traffic = iteration_bytes(gpu, model, tier, loop.batch * context)
    joules = tp * energy_j(gpu, loop.iteration_s, flops / tp, traffic / tp)
    return dollars(gpu, tp * 1.0, joules / loop.iteration_s)
