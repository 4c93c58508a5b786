"""The command ``jaxserve autoscale``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from jaxserve.cli.arguments import (
    ALL_OF_TRACE,
    File,
    Name,
    Number,
    OwnServer,
    PartOfTrace,
    Real,
    TimeUnit,
    import_plots,
    note_trace,
)
from jaxserve.errors import InputError


def autoscale_fleet(
    trace: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    max_replicas: int,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    min_replicas: int = 1,
    start_s: Annotated[str, tyro.conf.arg(metavar="CLASS|S|S,S")] = "warm",
    drain_s: float = 120.0,
    failing: float = 0.0,
    rules: Annotated[str, tyro.conf.arg(metavar="NAMES")] = "all",
    attainment: float = 0.95,
    batch_cap: int = 256,
    hardware: Name = None,
    model: Name = None,
    table: File = None,
    tensor_parallel: Number = None,
    token_budget: Number = None,
    ttft: Real = None,
    tpot: Real = None,
    time_unit: TimeUnit = None,
    part: PartOfTrace = ALL_OF_TRACE,
    seed: int = 0,
) -> None:
    """Find the autoscaling rule that serves your traffic with the fewest GPUs, and its numbers.

    Every rule is played with its own defaults and tuned on the first part of the trace, and judged
    on the rest. The best one is written as the file that its system reads.

    Args:
        trace: Recorded traffic: Azure, Mooncake or BurstGPT format.
        max_replicas: Greatest number of replicas, each on --tensor-parallel GPUs.
        out: Folder to write: autoscale.json, rule.json for jaxserve scale, curves.png and the
            winner's configuration.
        min_replicas: Least number of replicas.
        start_s: From the request for a replica until it serves: woken, warm or cold, seconds such
            as 120, or the shortest and longest such as 60,135.
        drain_s: Longest time that a replica which is to stop keeps its sequences, in seconds.
        failing: Share of the starts that end without a replica.
        rules: Names of rules, separated by commas, or all.
        attainment: Share of the requests that are to meet their objectives.
        batch_cap: Sequences that a replica runs at once (max_num_seqs of vLLM).
        hardware: GPU instead of the table's, such as h100-sxm-80gb, or a file.
        model: Model instead of the table's, or path of a config.json of Hugging Face.
        table: Latency table, a name or path of a .parquet file.
        tensor_parallel: GPUs that share every layer.
        token_budget: Tokens that an iteration may process (max_num_batched_tokens of vLLM).
        ttft: Objective on the time to first token, in seconds.
        tpot: Objective on the mean time per output token after the first, in seconds.
        time_unit: Unit of the trace's times, if its format does not tell.
        part: A part of the trace, in place of all of it.
        seed: Seed of start-up times.
    """
    import json

    from jaxserve.autoscale.export import config_file
    from jaxserve.autoscale.run import autoscale, parse_rules
    from jaxserve.autoscale.setup import load_demand
    from jaxserve.datafiles import check_folder, write_atomic, write_folder
    from jaxserve.scaling.setting import RuleSetting, rule_data
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.sim.machine.fleet import FleetSettings
    from jaxserve.sim.machine.hardware import load_gpu
    from jaxserve.sim.machine.models import load_model
    from jaxserve.sim.table.file import read_table_file

    report = import_plots("jaxserve.autoscale.report", "jaxserve autoscale")
    kinds = parse_rules(rules)
    check_folder(out, "autoscale.json")
    settings = FleetSettings(_start_s(start_s), drain_s, failing)
    own = OwnServer(
        hardware=hardware,
        model=model,
        table=table,
        trace=trace,
        time_unit=time_unit,
        part=part,
        ttft=ttft,
        tpot=tpot,
        tensor_parallel=tensor_parallel,
        token_budget=token_budget,
    )
    console = result_console()
    with progress_bars() as progress:
        demand = load_demand(
            max_replicas,
            settings,
            batch_cap,
            attainment,
            min_replicas,
            progress,
            seed,
            **own.given,
        )
    note_trace(trace, demand.setup.trace, demand.env)
    spec = demand.setup.spec
    served = load_model(model or spec.model).name, load_gpu(hardware or spec.hardware).name
    named = "__".join(served) if table is None else table
    timer = read_table_file(named).metadata.cost_model
    with progress_bars() as progress:
        answer = autoscale(demand, kinds, timer, progress)
    file, text = config_file(answer, demand.fleet)
    winner = rule_data(RuleSetting(answer.winner.kind, answer.winner.values), demand.fleet)
    console.print(report.rules_table(answer).rich())
    for line in report.sentences(answer):
        console.print(line, soft_wrap=True)
    written = {
        "autoscale.json": answer.to_json().encode() + b"\n",
        "rule.json": json.dumps(winner, indent=1).encode() + b"\n",
        "curves.png": report.curves_picture(answer, "png"),
        file: text.encode(),
    }
    write_folder(out, lambda folder: [write_atomic(folder / n, d) for n, d in written.items()])
    console.print(f"wrote {', '.join(written)} to {out}", soft_wrap=True)


def _start_s(text: str) -> tuple[float, float]:
    """Shortest and longest start-up of a class's name, of one number or of two."""
    from jaxserve.sim.machine.fleet import start_classes

    classes = start_classes()
    if text in classes:
        least, most = classes[text]["start_s"]
        return float(least), float(most)
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise InputError(
            f"--start-s is {text!r}; it must be {', '.join(classes)}, seconds such as 120, or the "
            "shortest and longest such as 60,135"
        )
    return numbers[0], numbers[-1]
