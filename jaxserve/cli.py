"""The command line. Commands only: each takes its arguments, calls the package and prints.

Commands import what they need themselves, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import tyro

from jaxserve.compilation_cache import enable_compilation_cache
from jaxserve.cores import use_all_cores
from jaxserve.errors import InputError

File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]


def evaluate_agents(
    task: str = "all",
    agent: str = "all",
    episodes: int = 20,
    seed_split: Literal["train", "validation", "test"] = "test",
    trace: File = None,
    hardware: Name = None,
    table: File = None,
    weights: File = None,
    plot: File = None,
    json: File = None,
) -> None:
    """Play agents on the same held-out episodes and print what they reach.

    Args:
        task: Name or alias of a task, path of a task file, or all.
        agent: Names separated by commas, or all for random, default, best_static, heuristic, ppo.
        episodes: Episodes of each agent on each task.
        seed_split: Whose seeds they have.
        trace: Recorded traffic to replay: Azure, Mooncake or BurstGPT format.
        hardware: GPU instead of the task's own.
        table: Latency table instead of the packaged one.
        weights: Directory of a training run, for ppo instead of the packaged weights.
        plot: Picture of the first episode to write: .png, .svg or .pdf.
        json: Results to write, with every episode's statistics.
    """
    from jaxserve.agents.evaluation import check_episodes, compare, to_json
    from jaxserve.agents.panel import load_setting, parse_agents, playable
    from jaxserve.outputs import check_output, write_output
    from jaxserve.report import evaluation_table
    from jaxserve.tasks.spec import task_names
    from jaxserve.terminal import progress_bars, result_console

    agents = parse_agents(agent)
    check_episodes(episodes)
    check_output(plot, "--plot")
    check_output(json, "--json")
    if trace is not None and task == "all":
        task = "trace_replay"
    settings = [
        load_setting(name, hardware, _text(table), _text(trace), weights)
        for name in (task_names() if task == "all" else (task,))
    ]
    if plot is not None:
        if len(settings) > 1:
            raise InputError("--plot draws one task; name it with --task")
        plots = _import_plots()
        plots.picture_format(plot)
    console, comparisons = result_console(), []
    for setting in settings:
        # Who names ppo wants to hear that it has no weights; all means all that can play.
        chosen = agents if "ppo" in agent else playable(agents, setting)
        with progress_bars() as progress:
            comparisons.append(compare(setting, chosen, episodes, seed_split, progress))
        console.print(evaluation_table(comparisons[-1]))
        if chosen != agents:
            console.print(f"without ppo, which has no weights for {setting.env.name}")
    if plot is not None:
        write_output(plot, plots.comparison_picture(comparisons[0], plot), "--plot")
    if json is not None:
        write_output(json, to_json(comparisons), "--json")


def train_agent(
    task: str,
    out: Path,
    steps: int = 5_000_000,
    seed: int = 0,
    seeds: int = 1,
    environments: int = 1024,
    learning_rate: float = 2e-3,
    discount: float | None = None,
    recurrent: bool = False,
    hardware: Name = None,
    table: File = None,
    trace: File = None,
    resume: bool = False,
    tensorboard: bool = False,
    coordinator: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None,
    processes: Number = None,
    process: Number = None,
) -> None:
    """Train a PPO controller and write its weights.

    Args:
        task: Name or alias of a task, or path of a task file.
        out: Directory of the run: checkpoints, metrics.csv, weights.
        steps: Control windows that each seed plays, rounded up to whole rollouts.
        seed: Seed of the first policy.
        seeds: Policies trained side by side, with seeds one apart.
        environments: Episodes that each seed plays at a time.
        learning_rate: At the start; it falls linearly.
        discount: Per window; by default from how long the task's traffic stays the same.
        recurrent: Remember with a gated recurrent unit as well as with running means.
        hardware: GPU instead of the task's own.
        table: Latency table instead of the packaged one.
        trace: Recorded traffic to train on: Azure, Mooncake or BurstGPT format.
        resume: Continue the run in --out from its last checkpoint.
        tensorboard: Write the metrics to OUT/tensorboard as well.
        coordinator: Where process 0 of several that train together listens.
        processes: How many train together.
        process: Number of this one, from 0.
    """
    from jaxserve.agents.discount import task_discount
    from jaxserve.agents.panel import load_setting
    from jaxserve.agents.processes import is_first, join_processes, together
    from jaxserve.agents.training import Interrupted, check_run, train
    from jaxserve.report import training_table
    from jaxserve.terminal import result_console, training_bar

    join_processes(coordinator, processes, process)
    with together():
        setting = load_setting(task, hardware, _text(table), _text(trace))
        chosen_discount = task_discount(setting.env) if discount is None else discount
        config = check_run(
            steps, seed, seeds, environments, learning_rate, chosen_discount, recurrent
        )
    chosen = tuple(range(seed, seed + seeds))
    try:
        with training_bar() if is_first() else nullcontext() as watch:
            result = train(
                setting,
                config,
                chosen,
                out,
                resume=resume,
                tensorboard=tensorboard,
                watch=watch,
            )
    except Interrupted as stopped:
        print(f"jaxserve: {stopped}", file=sys.stderr)
        raise SystemExit(130) from None
    if not is_first():
        return
    console = result_console()
    console.print(training_table(result, setting))
    console.print(
        f"compiled in {result.compile_s:.0f} s, trained in {result.train_s:.0f} s; "
        f"wrote the weights of seed {result.seeds[result.best]} to {out}",
        soft_wrap=True,
    )


def list_tasks() -> None:
    """List the tasks: their deployment, traffic and knobs."""
    from jaxserve.report import task_table
    from jaxserve.tasks.spec import load_task, task_names
    from jaxserve.terminal import result_console

    result_console().print(task_table([load_task(name) for name in task_names()]))


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
        tensor_parallel: GPUs that share every layer.
    """
    from jaxserve.outputs import check_output
    from jaxserve.sim.table_build import build, build_built_in
    from jaxserve.sim.table_file import write_table_file
    from jaxserve.terminal import result_console

    given = (model, hardware, out)
    if model is None or hardware is None or out is None:
        if given != (None, None, None):
            raise InputError("--model, --hardware and --out go together; name all three or none")
        written = build_built_in()
    else:
        check_output(out, "--out")
        write_table_file(out, build(hardware, model, tensor_parallel=tensor_parallel))
        written = [out]
    for path in written:
        result_console().print(f"wrote {path}", soft_wrap=True)


def show_table(
    table: tyro.conf.Positional[str],
    where: Annotated[dict[str, float] | None, tyro.conf.arg(metavar="AXIS VALUE ...")] = None,
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
    measured: tyro.conf.Positional[Path],
    hardware: str,
    model: str,
    out: Path,
    bandwidth_gb_per_s: float | None = None,
    bf16_tflops: float | None = None,
    memory_gb: float | None = None,
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
        memory_gb: The same for memory, GiB.
        tensor_parallel: GPUs that shared every layer.
        tier: Precision that was measured: 0 = FP16, 1 = INT8, 2 = INT4.
        chunk_budget: Tokens that one iteration could process.
    """
    from jaxserve.outputs import check_output
    from jaxserve.report import fit_report_table
    from jaxserve.sim.table_fit import fit
    from jaxserve.terminal import result_console

    check_output(out, "--out")
    report = fit(
        measured,
        hardware,
        model,
        out,
        bandwidth_gb_per_s=bandwidth_gb_per_s,
        bf16_tflops=bf16_tflops,
        memory_gb=memory_gb,
        tensor_parallel=tensor_parallel,
        tier=tier,
        chunk_budget=chunk_budget,
    )
    console = result_console()
    console.print(fit_report_table(report))
    console.print(f"wrote {out}", soft_wrap=True)


TableCommand = (
    Annotated[Any, tyro.conf.subcommand("build", constructor=build_table)]
    | Annotated[Any, tyro.conf.subcommand("show", constructor=show_table)]
    | Annotated[Any, tyro.conf.subcommand("fit", constructor=fit_table)]
)


def table_group(command: TableCommand) -> None:
    """Build, show or fit latency tables."""
    del command  # has run: it is the result of its command


def search_anchors(task: tyro.conf.Positional[str]) -> None:
    """Search a task's best static setting and oracle, and freeze its anchors in data/anchors.

    Args:
        task: Name or alias of a built-in task, or all.
    """
    from jaxserve.tasks.anchors import write_anchors
    from jaxserve.tasks.spec import task_names
    from jaxserve.terminal import result_console

    for name in task_names() if task == "all" else (task,):
        path = write_anchors(_measured_headroom(name).anchors())
        result_console().print(f"wrote {path}", soft_wrap=True)


def print_headroom(task: tyro.conf.Positional[str]) -> None:
    """Print how much adapting can gain: regimes against settings, policies against each other.

    Args:
        task: Name or alias of a task, or path of a task file.
    """
    _measured_headroom(task)


def check_fidelity(measurements: File = None, markdown: File = None, plot: File = None) -> None:
    """Recompute every comparison of the simulators with measurements and with each other.

    Args:
        measurements: Directory of the measured data; checks that need it are skipped without it.
        markdown: Table to write.
        plot: Picture of the errors against their bars to write.
    """
    from jaxserve.fidelity import report
    from jaxserve.fidelity.sources import shared_data
    from jaxserve.outputs import check_output, write_output
    from jaxserve.terminal import progress_bars, result_console

    check_output(markdown, "--markdown")
    check_output(plot, "--plot")
    if measurements is not None and not measurements.is_dir():
        raise InputError(f"--measurements {measurements} is not a directory")
    if plot is not None:
        _import_plots()
    with progress_bars() as progress:
        rows, skipped = report.run_checks(
            measurements or shared_data(), lambda name: progress(name, 0, 1)
        )
    console = result_console()
    console.print(report.fidelity_table(rows))
    for name in skipped:
        console.print(f"skipped {name}: the measured data is not there")
    if markdown is not None:
        write_output(markdown, report.fidelity_markdown(rows).encode(), "--markdown")
    if plot is not None:
        write_output(plot, report.fidelity_picture(rows), "--plot")


def _measured_headroom(task: str) -> Any:
    from jaxserve.agents.headroom import headroom_tables, measure_headroom
    from jaxserve.tasks.spec import load_task
    from jaxserve.terminal import progress_bars, result_console

    spec = load_task(task)
    with progress_bars() as progress:
        result = measure_headroom(spec, progress=progress)
    for table in headroom_tables(result):
        result_console().print(table)
    return result


COMMANDS: dict[str, Callable[..., Any]] = {
    "evaluate": evaluate_agents,
    "train": train_agent,
    "tasks": list_tasks,
    "table": table_group,
    "search": search_anchors,
    "headroom": print_headroom,
    "fidelity": check_fidelity,
}
"""Every command by its name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; the exit code is 0, or 2 after bad input, or 130 when interrupted."""
    try:
        enable_compilation_cache()
        use_all_cores()
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="jaxserve",
            description="Learn to operate an LLM inference server.",
            args=arguments,
            config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
        )
    except InputError as error:
        print(f"jaxserve: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("jaxserve: interrupted", file=sys.stderr)
        return 130
    return 0


def _import_plots() -> ModuleType:
    try:
        from jaxserve import plots
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise InputError(
            "--plot needs matplotlib, which the plot extra installs: pip install 'jaxserve[plot]'"
        ) from None
    return plots


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


if __name__ == "__main__":
    sys.exit(main())
