"""Commands about latency tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import File, Name, Real, optional
from jaxserve.errors import InputError
from jaxserve.fields import Tier
from jaxserve.show.outputs import check_output
from jaxserve.sim.machine.hardware import EngineSettings


def build_table(
    model: Name = None,
    hardware: Name = None,
    out: File = None,
    tensor_parallel: int = 1,
    stack: File = None,
) -> None:
    """Build a latency table from the constants of a model and a GPU.

    Without arguments the command rebuilds all packaged tables.

    Args:
        model: Model, for example llama-3.1-8b.
        hardware: GPU, for example h100-sxm-80gb.
        out: Table to write, ending in .parquet.
        tensor_parallel: GPUs that share every layer of the model.
        stack: JSON file of the serving stack: engine, version, formats of the tiers, kv_format,
            pipeline_parallel, attention_data_parallel, expert_parallel.
    """
    from jaxserve.datafiles import read_json
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.machine.assumptions import assumed_times
    from jaxserve.sim.machine.stack import Stack
    from jaxserve.sim.table.build import build, build_built_in
    from jaxserve.sim.table.file import write_table_file

    given = (model, hardware, out)
    if model is None or hardware is None or out is None:
        if given != (None, None, None):
            raise InputError("--model, --hardware and --out go together; name all three or none")
        if stack is not None:
            raise InputError(
                "--stack is given, but the packaged tables have none; name --model, --hardware and "
                "--out as well"
            )
        if tensor_parallel != 1:
            raise InputError(
                f"--tensor-parallel is {tensor_parallel}, but the packaged tables have their own; "
                "name --model, --hardware and --out as well"
            )
        written = build_built_in()
    else:
        _check_table_output(out)
        where = f"stack file {stack}"
        served = None if stack is None else Stack.from_dict(read_json(stack, where), where)
        table = build(hardware, model, tensor_parallel=tensor_parallel, stack=served)
        write_table_file(out, table)
        written = [out]
        for sentence in assumed_times(hardware, model, table.metadata.stack, Tier):
            result_console().print(sentence, soft_wrap=True)
    for path in written:
        result_console().print(f"wrote {path}", soft_wrap=True)


def show_table(
    table: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TABLE")],
    where: Annotated[dict[str, float] | None, optional("AXIS VALUE ...")] = None,
) -> None:
    """Show rows of a latency table.

    Args:
        table: Name of a packaged table (model__gpu), or path of a file.
        where: Rows to show, for example batch_size 32 quant_tier 0 prompt_len 512. By default
            rows with all of the KV memory, FP16 and prompts of 512 tokens.
    """
    from jaxserve.show.latency_table import pick_rows, render_rows
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.table.file import read_table_file

    file = read_table_file(table)
    rows = pick_rows(file, where or {"kv_budget": 1.0, "quant_tier": 0.0, "prompt_len": 512.0})
    result_console().print(render_rows(file, rows))


def fit_table(
    measured: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILE ...")],
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")],
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    bandwidth_gb_per_s: Real = None,
    bf16_tflops: Real = None,
    memory_gib: Real = None,
    tensor_parallel: int = 1,
    tier: int = 0,
    token_budget: int = EngineSettings.token_budget,
) -> None:
    """Fit a latency table to your own load test, in any format that jaxserve formats lists.

    Args:
        measured: Load test: a file with one row per run, or several files of one engine.
        hardware: GPU whose constants are fitted.
        model: Model of the load test.
        out: Table to write, ending in .parquet.
        bandwidth_gb_per_s: Memory bandwidth of the measured GPU, if it is not --hardware, GB/s.
        bf16_tflops: Peak bf16 arithmetic of the measured GPU, likewise, TFLOP/s.
        memory_gib: Memory of the measured GPU, likewise, GiB.
        tensor_parallel: GPUs that shared every layer.
        tier: Precision of the load test: 0 = FP16, 1 = INT8, 2 = INT4.
        token_budget: Most tokens of an iteration.
    """
    from jaxserve.show.report import fit_report_table
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.fit.load_test import GpuPeaks, MeasuredEngine, fit

    _check_table_output(out)
    report = fit(
        measured,
        hardware,
        model,
        out,
        peaks=GpuPeaks(bandwidth_gb_per_s, bf16_tflops, memory_gib),
        engine=MeasuredEngine(tensor_parallel, tier, token_budget),
    )
    console = result_console()
    console.print(report.note, soft_wrap=True)
    console.print(fit_report_table(report))
    console.print(f"wrote {out}", soft_wrap=True)


def list_formats() -> None:
    """List the formats of files that are read: how each looks, what it gives and cannot tell."""
    from jaxserve.file_formats import described

    print(described())


def fit_steps(
    steps: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")],
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    tensor_parallel: int = 1,
    token_budget: int = EngineSettings.token_budget,
) -> None:
    """Fit a latency table to iterations measured one by one, on any hardware.

    Args:
        steps: CSV or parquet with seconds, decode_seqs, kv_tokens and prompt_tokens of every
            iteration, and prefix_tokens for prompts computed in chunks.
        hardware: GPU for memory, power and price; its times only check that the file's are in
            seconds.
        model: Model of the iterations.
        out: Table to write, ending in .parquet.
        tensor_parallel: GPUs that shared every layer.
        token_budget: Most tokens of an iteration.
    """
    from jaxserve.fields import TOKEN_BUDGETS
    from jaxserve.live.calibration.step_file import read_steps, table_of_steps
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.machine.hardware import load_gpu
    from jaxserve.sim.machine.models import load_model
    from jaxserve.sim.table.file import write_table_file

    _check_table_output(out)
    checks.whole("--token-budget", token_budget, *TOKEN_BUDGETS)
    gpu, llm = load_gpu(hardware), load_model(model)
    found, table = table_of_steps(
        read_steps(steps), gpu, llm, tensor_parallel, token_budget, steps.name
    )
    write_table_file(out, table)
    result_console().print(
        f"fitted to {found.points} kinds of steps, {found.error:.1%} off; {found.held_out} of them "
        f"held out: {found.held_out_error:.1%} off, the tenth with the largest loads "
        f"{found.largest_error:.1%}, the worst {found.worst_error:+.1%}\nwrote {out}",
        soft_wrap=True,
    )


def fit_kernels(
    files: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILE ...")],
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")],
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    tensor_parallel: int = 1,
    token_budget: int = EngineSettings.token_budget,
) -> None:
    """Fit a latency table to measured kernels: aiconfigurator's files, or LLMServingSim's profile.

    Args:
        files: gemm_perf, generation_attention_perf and context_attention_perf; or dense,
            per_sequence and attention of a layer profile. Their columns tell them apart.
        hardware: Measured GPU, or a file with its peaks and its host time.
        model: Model of the kernels.
        out: Table to write, ending in .parquet.
        tensor_parallel: GPUs that share every layer.
        token_budget: Most tokens of an iteration.
    """
    from jaxserve.show.report import kernel_report_table
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.fit.kernel_table import fit_kernels
    from jaxserve.sim.machine.hardware import load_gpu
    from jaxserve.sim.machine.models import load_model

    _check_table_output(out)
    report = fit_kernels(
        files,
        load_gpu(hardware),
        load_model(model),
        out,
        tensor_parallel=tensor_parallel,
        token_budget=token_budget,
    )
    console = result_console()
    console.print(kernel_report_table(report))
    console.print(f"wrote {out}", soft_wrap=True)


def write_step_times(
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    tensor_parallel: int = 1,
    tier: int = 0,
    time_dilation: float = 1.0,
) -> None:
    """Write the step times of a model on a GPU, for vLLM with an emulated device.

    Args:
        model: Model, for example llama-3.1-8b.
        hardware: GPU, for example h100-sxm-80gb.
        out: JSON file to write.
        tensor_parallel: GPUs that share every layer.
        tier: Precision: 0 = FP16, 1 = INT8, 2 = INT4.
        time_dilation: Factor on every step, for a host that is too slow for the GPU's steps.
    """
    from jaxserve.show.outputs import write_output
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.machine.cost_model import CostModel
    from jaxserve.sim.machine.hardware import load_gpu
    from jaxserve.sim.machine.memory import kv_capacity_tokens
    from jaxserve.sim.machine.models import load_model
    from jaxserve.sim.machine.step_times import CPU_BLOCK_TOKENS, step_times

    check_output(out, "--out")
    checks.whole("--tier", tier, 0, 2)
    checks.positive("--time-dilation", time_dilation)
    gpu, llm = load_gpu(hardware), load_model(model)
    times = step_times(CostModel.of(gpu, llm, tensor_parallel), tier, time_dilation)
    pool_tokens = kv_capacity_tokens(gpu, llm, tier, 1.0, False, tensor_parallel)
    write_output(out, f"{json.dumps(times, indent=2)}\n".encode(), "--out")
    result_console().print(
        f"wrote {out}; this GPU has room for {int(pool_tokens)} KV tokens: vllm serve "
        f"--block-size {CPU_BLOCK_TOKENS} "
        f"--num-gpu-blocks-override {int(pool_tokens // CPU_BLOCK_TOKENS)}",
        soft_wrap=True,
    )


def _check_table_output(out: Path) -> None:
    check_output(out, "--out")
    checks.ending("--out", out, ".parquet")  # a path of a table has this ending


TableCommand = (
    Annotated[Any, tyro.conf.subcommand("build", constructor=build_table)]
    | Annotated[Any, tyro.conf.subcommand("show", constructor=show_table)]
    | Annotated[Any, tyro.conf.subcommand("fit", constructor=fit_table)]
    | Annotated[Any, tyro.conf.subcommand("fit-steps", constructor=fit_steps)]
    | Annotated[Any, tyro.conf.subcommand("fit-kernels", constructor=fit_kernels)]
    | Annotated[Any, tyro.conf.subcommand("step-times", constructor=write_step_times)]
)


def table_group(command: TableCommand) -> None:
    """Build, show or fit latency tables, or write step times."""
    del command  # the subcommand has run
