"""Commands about latency tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxserve.cli.arguments import File, Name, Real, optional
from jaxserve.errors import InputError
from jaxserve.outputs import check_output


def build_table(
    model: Name = None,
    hardware: Name = None,
    out: File = None,
    tensor_parallel: int = 1,
) -> None:
    """Build a latency table from the constants of a model and a GPU.

    Without arguments, all packaged tables are built anew.

    Args:
        model: Model, for example llama-3.1-8b.
        hardware: GPU, for example h100-sxm-80gb.
        out: Table to write, ending in .parquet.
        tensor_parallel: GPUs that share every layer of the model that is named.
    """
    from jaxserve.sim.table_build import build, build_built_in
    from jaxserve.sim.table_file import write_table_file
    from jaxserve.terminal import result_console

    given = (model, hardware, out)
    if model is None or hardware is None or out is None:
        if given != (None, None, None):
            raise InputError("--model, --hardware and --out go together; name all three or none")
        if tensor_parallel != 1:
            raise InputError(
                f"--tensor-parallel is {tensor_parallel}, but the packaged tables have their own; "
                "name --model, --hardware and --out as well"
            )
        written = build_built_in()
    else:
        _check_table_output(out)
        write_table_file(out, build(hardware, model, tensor_parallel=tensor_parallel))
        written = [out]
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
            those with all of the KV memory, FP16 and prompts of 512 tokens.
    """
    from jaxserve.sim.table_file import read_table_file
    from jaxserve.sim.table_show import pick_rows, render_rows
    from jaxserve.terminal import result_console

    file = read_table_file(table)
    rows = pick_rows(file, where or {"kv_budget": 1.0, "quant_tier": 0.0, "prompt_len": 512.0})
    result_console().print(render_rows(file, rows))


def fit_table(
    measured: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")],
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    bandwidth_gb_per_s: Real = None,
    bf16_tflops: Real = None,
    memory_gib: Real = None,
    tensor_parallel: int = 1,
    tier: int = 0,
    chunk_budget: int = 2048,
) -> None:
    """Fit a latency table to your own load test (CSV or JSON lines, such as vllm bench serve's).

    Args:
        measured: Load test: concurrency, prompt and output length, TPOT and TTFT in columns.
        hardware: GPU whose constants are fitted.
        model: Model that was measured.
        out: Table to write, ending in .parquet.
        bandwidth_gb_per_s: Memory bandwidth, where the GPU measured is not --hardware, GB/s.
        bf16_tflops: The same for peak arithmetic, TFLOP/s.
        memory_gib: The same for its memory, GiB.
        tensor_parallel: GPUs that shared every layer.
        tier: Precision that was measured: 0 = FP16, 1 = INT8, 2 = INT4.
        chunk_budget: Tokens that one iteration could process.
    """
    from jaxserve.report import fit_report_table
    from jaxserve.sim.table_fit import POOR_TPOT_ERROR, fit
    from jaxserve.terminal import result_console

    _check_table_output(out)
    report = fit(
        measured,
        hardware,
        model,
        out,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        bf16_tflops=bf16_tflops,
        memory_gib=memory_gib,
        tensor_parallel=tensor_parallel,
        tier=tier,
        chunk_budget=chunk_budget,
    )
    console = result_console()
    console.print(fit_report_table(report))
    if report.tpot_error > POOR_TPOT_ERROR:
        print(
            f"jaxserve: the fit is {report.tpot_error:.0%} off; look at the units and columns of "
            f"{measured}, and whether another --hardware is nearer",
            file=sys.stderr,
        )
    console.print(f"wrote {out}", soft_wrap=True)


def _check_table_output(out: Path) -> None:
    check_output(out, "--out")
    if out.suffix != ".parquet":  # the ending by which a path of a table is known
        raise InputError(f"--out is {out}; a table must end in .parquet")


TableCommand = (
    Annotated[Any, tyro.conf.subcommand("build", constructor=build_table)]
    | Annotated[Any, tyro.conf.subcommand("show", constructor=show_table)]
    | Annotated[Any, tyro.conf.subcommand("fit", constructor=fit_table)]
)


def table_group(command: TableCommand) -> None:
    """Build, show or fit latency tables."""
    del command  # has run: it is the result of its command
