"""The command ``jaxserve simulate``."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import (
    ALL_OF_TRACE,
    File,
    Name,
    Number,
    PartOfTrace,
    Real,
    TimeUnit,
    optional,
)
from jaxserve.errors import InputError, InputWarning
from jaxserve.show.outputs import check_output


def simulate_log(
    log: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="FILE")] = None,
    trace: File = None,
    table: Name = None,
    hardware: Name = None,
    model: Name = None,
    profile: Annotated[tuple[Path, Path, Path] | None, optional("FILE FILE FILE")] = None,
    tensor_parallel: int = 1,
    gpus: int = 1,
    batch_cap: int = 256,
    kv_tokens: Number = None,
    token_budget: Number = None,
    tier: int = 0,
    prefix_caching: bool = False,
    routing: Literal["least_loaded", "round_robin", "prefix_affinity"] = "least_loaded",
    concurrency: Number = None,
    frontend_ms: Real = None,
    run: Number = None,
    time_unit: TimeUnit = None,
    part: PartOfTrace = ALL_OF_TRACE,
    csv: File = None,
) -> None:
    """Run the reference simulator on your trace, and compare with its latencies if it has any.

    Args:
        log: A trace, vllm bench serve's --save-detailed result, a log of requests of vLLM, or
            the records of jaxserve gateway.
        trace: The same file as an option, as in jaxserve evaluate.
        table: Latency table of the engine, by name or path.
        hardware: GPU, instead of --table, or the GPU file that --table was measured on.
        model: Model, likewise; or path of a config.json of Hugging Face.
        profile: The three files of a layer profile (dense, per_sequence, attention), instead of
            --table: times are interpolated in it.
        tensor_parallel: GPUs that share every layer, with --hardware.
        gpus: Engines behind one router.
        batch_cap: Largest number of running sequences of an engine.
        kv_tokens: Capacity of an engine's KV pool, tokens; by default the rest of the GPU's memory.
        token_budget: Tokens of an iteration; by default the table's, or 2048.
        tier: Precision: 0 = FP16, 1 = INT8, 2 = INT4.
        prefix_caching: Share the KV of prompts with a common beginning; the trace's hash_ids name
            these prompts.
        routing: Engine of the next request: the least loaded one that has room, one after the
            other, or the one that has most of the prompt cached unless it is busier.
        concurrency: Requests in flight at most, as in a load test: each begins when another has
            ended, whenever it came in the file.
        frontend_ms: Delay between client and engine, which adds to TTFT, ms; by default what a
            client's log shows, or 0.
        run: Which run of a file to which vllm bench serve has appended several, from 1 on.
        time_unit: Unit of the file's times, where its format does not tell.
        part: A part of the file, in place of all of it.
        csv: File to write the simulated requests to.
    """
    from jaxserve.agents.progress import stage_progress
    from jaxserve.show.simulation import quantities_table, requests_csv
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.sim.machine.assumptions import assumed_times
    from jaxserve.sim.reference import own_log
    from jaxserve.sim.reference.own_engine import own_engine
    from jaxserve.sim.reference.settings import Routing
    from jaxserve.sim.table.extent import Extent, warn_beyond
    from jaxserve.sim.traffic.request_logs import load_request_log

    file = log or trace
    if file is None or (log and trace):
        raise InputError("name one file of requests, by itself or as --trace")
    if csv is not None:
        check_output(csv, "--csv")
    checks.whole("--tier", tier, 0, 2)
    if frontend_ms is not None:
        checks.number("--frontend-ms", frontend_ms, 0, 3_600_000)
    engine = own_engine(table, hardware, model, tensor_parallel, profile)
    if kv_tokens is not None and engine.sequence_kv is not None:
        warnings.warn(
            "--kv-tokens counts the tokens of layers that keep all of them; what vLLM says of a "
            "model with windows or states is less, as its requests of --max-model-len also keep "
            "those",
            InputWarning,
            stacklevel=1,
        )
    by = own_log.ServedBy(
        kv_tokens=engine.kv_tokens(tier) if kv_tokens is None else kv_tokens,
        gpus=gpus,
        batch_cap=batch_cap,
        token_budget=engine.token_budget if token_budget is None else token_budget,
        tier=tier,
        prefix_caching=prefix_caching,
        routing=Routing(routing),
        frontend_s=(frontend_ms or 0.0) / 1e3,
        concurrency=concurrency,
        context_tokens=engine.context_tokens,
        sequence_kv=engine.sequence_kv,
    )
    engine.check_limits(by.batch_cap, by.token_budget, by.tier)
    with progress_bars() as progress:
        reading = stage_progress(f"reading {file.name}, MiB", progress)
        requests = load_request_log(file, run, time_unit, part.taken, reading)
    own_log.check_requests(str(file), requests.trace)
    served = own_log.simulate(requests.trace, engine.timer, by)
    console = result_console()
    console.print(f"{file}: {requests.trace.summary}", soft_wrap=True)
    notes = own_log.trace_notes(requests.trace, by.context_tokens)
    if concurrency is not None:
        notes.append(f"{concurrency} requests are in flight, whenever they came in the file")
    notes += filter(None, [own_log.unstreamed_note(requests)])
    if engine.from_constants:
        notes += assumed_times(engine.hardware, engine.model, engine.stack, (tier,))
    unserved = own_log.unserved_note(requests.trace, served, by)
    shown_s = own_log.frontend_of(requests, served) if frontend_ms is None else None
    if shown_s is not None:
        by = dataclasses.replace(by, frontend_s=shown_s)
        served = own_log.simulate(requests.trace, engine.timer, by)
        notes.append(
            f"the log shows a front end of {1e3 * shown_s:.3g} ms, which is in the simulated TTFT; "
            "--frontend-ms 0 leaves it out"
        )
    for note in filter(None, (*notes, unserved)):
        console.print(note, soft_wrap=True)
    lengths = (requests.trace.prompt_tokens, requests.trace.output_tokens)
    warn_beyond(engine.measured, Extent.of_requests(batch_cap, *lengths))
    found = own_log.quantities(requests, served)
    own_log.check_unit(found)
    console.print(quantities_table(requests, served, found, by.kv_tokens))
    note = own_log.reuse_note(requests.trace, served, prefix_caching)
    if note is not None:
        console.print(note, soft_wrap=True)
    if csv is not None:
        requests_csv(csv, served)
        console.print(f"wrote {csv}", soft_wrap=True)
