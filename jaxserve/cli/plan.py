"""The command ``jaxserve plan``."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxserve.cli.arguments import (
    ALL_OF_TRACE,
    File,
    Name,
    Number,
    PartOfTrace,
    Real,
    TimeUnit,
    needing,
    optional,
)
from jaxserve.errors import InputError

_Files = Annotated[tuple[str, ...], optional("[GPU/TP/FORMAT=]FILE ...")]


def plan_deployment(
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    ttft: Annotated[float, tyro.conf.arg(metavar="FLOAT")],
    tpot: Annotated[float, tyro.conf.arg(metavar="FLOAT")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    trace: File = None,
    time_unit: TimeUnit = None,
    part: PartOfTrace = ALL_OF_TRACE,
    rate: Real = None,
    prompt: Number = None,
    output: Number = None,
    attainment: float = 0.99,
    hardware: Name = None,
    max_gpus: int = 16,
    format: str = "bf16,fp8",
    kv_format: str = "bf16,fp8",
    draft: Name = None,
    split: bool = False,
    prices: File = None,
    load_test: _Files = (),
    table: File = None,
    check: Annotated[str | None, optional("URL")] = None,
    processes: Number = None,
    backend: Literal["loky", "ray"] = "loky",
) -> None:
    """Find the cheapest deployment that meets your objectives, and write the files that start it.

    Args:
        model: Model, for example llama-3.1-8b, or path of a config.json of Hugging Face.
        ttft: Objective on the time to first token, in seconds.
        tpot: Objective on the mean time per output token after the first, in seconds.
        out: Folder to write: plan.json, report.html, and what starts the deployment.
        trace: Recorded traffic, as jaxserve simulate reads it.
        time_unit: Unit of the trace's times, if its format does not tell.
        part: A part of the trace, in place of all of it.
        rate: Requests per second, in place of a trace.
        prompt: Prompt tokens of every request, with --rate.
        output: Output tokens of every request, with --rate.
        attainment: Share of the requests that must meet both objectives.
        hardware: GPUs to choose from, separated by commas, names or files; all by default.
        max_gpus: GPUs of a deployment, at most.
        format: Number formats of the weights that are allowed, the preferred one first.
        kv_format: The same of the KV cache.
        draft: Acceptance of EAGLE drafts that engines may speculate with, for example
            sharegpt/eagle; without it no engine speculates.
        split: Also try deployments some of whose replicas only prefill while the others decode.
        prices: JSON file of USD per hour of one GPU by name, in place of the GPU files' own.
        load_test: Load tests of your engines, see table fit; GPU/TP/FORMAT= says of which engine,
            such as h100-sxm-80gb/2/fp8=test.jsonl, where --hardware names more than one GPU.
        table: Latency table of one of the engines, for example from table fit.
        check: Address of the started deployment, with the options of its plan: sends it the busiest
            part of the traffic, says how far the plan in --out was off, and plans again with the
            measured times; its API key is read from OPENAI_API_KEY.
        processes: Runs at a time; by default one for each core.
        backend: joblib's backend of the runs: loky starts processes here, ray uses the cluster of
            RAY_ADDRESS, or starts one here.
    """
    from jaxserve.agents.progress import stage_progress
    from jaxserve.datafiles import check_folder
    from jaxserve.plan.answer import certainty, headline, scaling
    from jaxserve.plan.folder import kept_file, write_plan
    from jaxserve.plan.inputs import (
        PlanInputs,
        PlanObjective,
        gpu_prices,
        read_traffic,
        steady_traffic,
    )
    from jaxserve.plan.load_tests import measured_options
    from jaxserve.plan.options import engine_options
    from jaxserve.plan.plan import make_plan
    from jaxserve.plan.play import Player
    from jaxserve.runtime.process_pool import cores, on_backend
    from jaxserve.show.terminal import progress_bars, result_console

    objective = PlanObjective(ttft, tpot, attainment)
    check_folder(out, "plan.json")
    steady = (rate, prompt, output)
    if (trace is None) == (steady == (None, None, None)):
        raise InputError("name the traffic: either --trace, or --rate, --prompt and --output")
    if trace is not None:
        with progress_bars() as progress:
            reading = stage_progress(f"reading {trace.name}, MiB", progress)
            requests, traffic = read_traffic(trace, time_unit, part.taken, reading)
    elif rate is None or prompt is None or output is None:
        raise InputError("--rate, --prompt and --output go together; name all three")
    else:
        requests, traffic = steady_traffic(rate, prompt, output)
    kinds = None if hardware in (None, "all") else _words("--hardware", str(hardware))
    priced, unpriced = gpu_prices(kinds, prices)
    inputs = PlanInputs(
        model=model,
        trace=requests,
        traffic=traffic,
        objective=objective,
        prices=priced,
        max_gpus=max_gpus,
        formats=_words("--format", format),
        kv_formats=_words("--kv-format", kv_format),
        unpriced=unpriced,
        trace_file=trace,
        draft=draft,
        split=split,
    )
    tell = partial(result_console().print, soft_wrap=True)
    tell(traffic)
    options, excluded = engine_options(inputs)
    options = measured_options(options, inputs, load_test, table, tell)
    found = None
    if check is not None:
        with needing("gateway", "plan --check"):
            from jaxserve.plan.check import check_json, check_server, options_as_checked, planned_in
        planned = planned_in(out, inputs, options)
        with progress_bars() as progress:
            checked = check_server(check, inputs, planned, progress)
        found = check_json(checked)
        for sentence in checked.sentences():
            tell(sentence)
        inputs = dataclasses.replace(inputs, frontend_s=checked.frontend_s)
        options = options_as_checked(options, checked, inputs)
    with progress_bars() as progress, on_backend(backend):
        player = Player(inputs, kept_file(out), processes or cores())
        plan = make_plan(inputs, options, excluded, player, progress)
    plan = dataclasses.replace(plan, check=found)
    names = write_plan(out, plan)
    kept_file(out).unlink(missing_ok=True)
    for sentence in (headline(plan), *certainty(plan), _growth(plan.bears), *scaling(plan)):
        tell(sentence)
    for each in plan.neighbours:
        if each.binds:
            tell(f"{each.difference}: missed, bound by {each.binds}")
    tell(f"wrote {out}: {', '.join(names)}")


def _growth(bears: tuple[float, bool]) -> str:
    factor, largest = bears
    return f"It bears {'at least ' if largest else ''}{factor:g} times the traffic."


def _words(option: str, text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found:
        raise InputError(f"{option} is empty; name at least one")
    return found
