"""Commands about agents: evaluate, train and compare them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxserve.cli.arguments import (
    OWN,
    Count,
    Directory,
    File,
    Name,
    Number,
    OptionalCount,
    OwnServer,
    Real,
    Task,
    check_outputs,
    import_plots,
    note_trace,
    optional,
    own_setup,
)
from jaxserve.errors import InputError


def evaluate_agents(
    task: Name = None,
    agent: Annotated[str, tyro.conf.arg(metavar="AGENTS")] = "all",
    episodes: int = 20,
    seed_split: Literal["train", "validation", "test"] = "test",
    own: OwnServer = OWN,
    weights: Directory = None,
    plot: File = None,
    markdown: File = None,
    json: File = None,
) -> None:
    """Play agents on the same held-out episodes and print their results.

    Args:
        task: Name or alias of a task (see jaxserve tasks), path of a task file, or all; by default
            all, or trace_replay with a trace.
        agent: Names separated by commas, or all for random, default, best_static, heuristic, ppo;
            planner and regime_oracle see the simulator's state and play only if named.
        episodes: Episodes of each agent on each task.
        seed_split: Training, validation or held-out test episodes.
        weights: Directory of a training run, for ppo instead of the packaged weights.
        plot: Picture of the first episode to write, ending in .png, .svg or .pdf; one task only.
        markdown: File to write the tables to.
        json: File to write every episode's statistics to.
    """
    from jaxserve.agents.panel import parse_agents, playable
    from jaxserve.evaluation.held_out import check_episodes, evaluate_all, to_json
    from jaxserve.show.outputs import write_output
    from jaxserve.show.report import (
        evaluation_markdown,
        evaluation_table,
        search_table,
        tail_table,
    )
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.tasks.spec import task_names

    agents = parse_agents(agent)
    check_episodes(episodes)
    check_outputs({"--plot": plot, "--markdown": markdown, "--json": json})
    if task == "all" and own.trace is not None:
        raise InputError("--task all plays the tasks' own traffic; name one task for --trace")
    if task in (None, "all"):
        names = task_names() if own.trace is None else (own.task(None),)
    else:
        names = (task,)
    setups = [own_setup(name, own, weights) for name in names]
    if plot is not None:
        if len(setups) > 1:
            raise InputError("--plot draws one task; name it with --task")
        plots = import_plots()
        plots.picture_format(plot)
    note_trace(own.trace, setups[0].trace, setups[0].env)
    console, evaluations, tables = result_console(), [], []
    for sentence in dict.fromkeys(each for setup in setups for each in setup.assumed):
        console.print(sentence, soft_wrap=True)
    for setup in setups:
        # What a task lacks is an error for an agent by name, and leaves it out of all.
        named = {part.strip().lower() for part in agent.split(",")}
        here = playable(agents, setup)
        chosen = tuple(name for name in agents if name in named or name in here)
        with progress_bars() as progress:
            evaluations.append(evaluate_all(setup, chosen, episodes, seed_split, progress))
        evaluated = evaluations[-1]
        shown = [] if evaluated.search is None else [search_table(setup, evaluated.search)]
        shown += [evaluation_table(evaluated), tail_table(evaluated)]
        tables += shown
        for table in shown:
            console.print(table.rich())
        if "ppo" in set(agents) - set(chosen):
            console.print(f"without ppo, which has no weights for {setup.spec.name}")
    if plot is not None:
        write_output(plot, plots.evaluation_picture(evaluations[0], plot), "--plot")
    if markdown is not None:
        write_output(markdown, evaluation_markdown(tables).encode(), "--markdown")
    if json is not None:
        write_output(json, to_json(evaluations), "--json")


@dataclass(frozen=True)
class TrainOptions:
    """Options of a training run."""

    task: Task
    """Name or alias of a task (see jaxserve tasks), or path of a task file."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")]
    """Directory of the run, new or empty: gets checkpoints, metrics.csv and weights."""
    steps: Count = 5_000_000
    """Control windows of each seed, such as 1e6, rounded up to whole updates; an update plays 25
    windows of every environment."""
    seed: int = 0
    """Seed of the first policy."""
    seeds: int = 1
    """Policies trained side by side, with consecutive seeds."""
    environments: int = 1024
    """Episodes that each seed plays at a time, a multiple of 8 on each device."""
    learning_rate: float = 2e-3
    """Adam's step size at the start; it falls linearly to a twentieth."""
    discount: Real = None
    """Discount per control window, 0.5 to 0.9999; by default 0.97, or higher for tasks in which a
    change of tier or split takes longer to pay off."""
    recurrent: bool = False
    """Remember with a gated recurrent unit as well as with running means."""
    own: OwnServer = OWN
    """Your own server and traffic, in place of the task's."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with the same other options."""
    tensorboard: bool = False
    """Write the metrics for TensorBoard as well, to tensorboard in --out."""
    coordinator: Annotated[str | None, optional("HOST:PORT")] = None
    """Address of process 0, for several processes that train together."""
    processes: Number = None
    """Number of processes that train together."""
    process: Number = None
    """Number of this process, from 0."""


def train_agent(training: TrainOptions) -> None:
    """Train a PPO controller and write its weights."""
    from jaxserve.learning.distributed import is_first, join_processes, together
    from jaxserve.learning.run_options import config_for
    from jaxserve.learning.training import Interrupted, train
    from jaxserve.show.report import training_table
    from jaxserve.show.terminal import result_console, training_bar

    join_processes(training.coordinator, training.processes, training.process)
    with together():
        setup = own_setup(training.task, training.own)
        config = config_for(
            setup.env,
            training.steps,
            training.seed,
            training.seeds,
            training.environments,
            training.learning_rate,
            training.discount,
            training.recurrent,
        )
    if is_first():
        note_trace(training.own.trace, setup.trace, setup.env)
    try:
        with training_bar() if is_first() else nullcontext() as watch:
            result = train(
                setup,
                config,
                tuple(range(training.seed, training.seed + training.seeds)),
                training.out,
                resume=training.resume,
                tensorboard=training.tensorboard,
                watch=watch,
            )
    except Interrupted as stopped:
        print(f"jaxserve: {stopped}", file=sys.stderr)
        raise SystemExit(130) from None
    if not is_first():
        return
    console = result_console()
    console.print(training_table(result, setup))
    console.print(
        f"compiled in {result.compile_s:.0f} s, trained in {result.train_s:.0f} s; "
        f"wrote the weights of seed {result.seeds[result.best]} to {training.out}",
        soft_wrap=True,
    )


def compare_agents(
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[TASK]")] = "all",
    seeds: int = 10,
    steps: OptionalCount = None,
    episodes: int = 64,
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")] = "a100-sxm-80gb",
    trace: File = None,
    markdown: File = None,
    json: File = None,
) -> None:
    """Train, play and compare all agents on held-out episodes, with intervals.

    Finished runs, unfinished runs and results of an earlier call in --out are used again.

    Args:
        out: Directory of runs, results and pictures, with a directory for each task.
        task: Name or alias of a task (see jaxserve tasks), path of a task file, or all.
        seeds: Policies that PPO trains on each task.
        steps: Control windows of each seed, such as 1e6; by default those of the run in --out, or
            5,000,000 for a new run.
        episodes: Test episodes of every policy.
        hardware: GPU that no policy was trained on, to transfer to.
        trace: Recorded traffic to transfer to: Azure, Mooncake or BurstGPT format.
        markdown: File to write the tables to.
        json: File to write the numbers of every run and episode to.
    """
    from jaxserve.learning.run_directory import open_directory
    from jaxserve.learning.training import Interrupted
    from jaxserve.show.outputs import write_output
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.sim.traffic.traces import load_trace
    from jaxserve.studies.compare.protocol import compare_task, prepare
    from jaxserve.studies.compare.result_tables import command_text, summary, task_tables
    from jaxserve.studies.compare.result_tables import markdown as to_markdown
    from jaxserve.studies.compare.results import to_json
    from jaxserve.tasks.replay import trace_path
    from jaxserve.tasks.spec import task_names

    check_outputs({"--markdown": markdown, "--json": json})
    pictures = import_plots("jaxserve.studies.compare.pictures", "jaxserve compare")
    recorded = None if trace is None else load_trace(trace_path(trace))
    cases = [
        prepare(
            name,
            out,
            seeds=seeds,
            steps=steps,
            episodes=episodes,
            hardware=hardware,
            trace=trace,
            recorded=recorded,
        )
        for name in (task_names() if task == "all" else (task,))
    ]
    open_directory(out)
    note_trace(trace, recorded, cases[0].setup.env)
    console, results = result_console(), []
    for case in cases:
        try:
            with progress_bars() as progress:
                result, policies, again = compare_task(case, progress)
        except Interrupted:
            print("jaxserve: stopped while training; the same command goes on", file=sys.stderr)
            raise SystemExit(130) from None
        results.append(result)
        pictures.write_task_pictures(case, policies)
        if again:
            console.print(f"{result.task}: results of an earlier call", soft_wrap=True)
        for table in task_tables(result):
            console.print(table.rich())
    pictures.write_scores(results, out)
    console.print(summary(results).rich())
    if markdown is not None:
        command = command_text(task, seeds, steps, episodes, hardware, trace)
        write_output(markdown, to_markdown(results, command).encode(), "--markdown")
    if json is not None:
        write_output(json, to_json(results), "--json")
