"""The command ``jaxserve simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import File, Name, Number
from jaxserve.errors import InputError
from jaxserve.show.outputs import check_output


def simulate_log(
    log: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="FILE")] = None,
    trace: File = None,
    table: Name = None,
    hardware: Name = None,
    model: Name = None,
    tensor_parallel: int = 1,
    gpus: int = 1,
    batch_cap: int = 256,
    kv_tokens: Number = None,
    token_budget: Number = None,
    tier: int = 0,
    prefix_caching: bool = False,
    frontend_ms: float = 0.0,
    run: Number = None,
    time_unit: Annotated[Literal["s", "ms"] | None, tyro.conf.arg(metavar="UNIT")] = None,
    csv: File = None,
) -> None:
    """Run the reference simulator on your trace, beside your log where it tells latencies.

    Args:
        log: A trace, vllm bench serve's --save-detailed result, a log of requests of vLLM, or
            the records of jaxserve gateway.
        trace: The same, as jaxserve evaluate has it.
        table: Latency table of the engine, by name or path.
        hardware: GPU, instead of --table or where that is of a GPU file of yours.
        model: Model, likewise; or path of a config.json of Hugging Face.
        tensor_parallel: GPUs that share every layer, with --hardware.
        gpus: Engines behind one router.
        batch_cap: Sequences that one engine runs at once.
        kv_tokens: KV tokens that one engine has room for; by default what the GPU leaves.
        token_budget: Tokens of an iteration; by default the table's, or 2048.
        tier: Precision: 0 = FP16, 1 = INT8, 2 = INT4.
        prefix_caching: Prompts that begin alike find each other's KV; a trace with hash_ids says
            which do.
        frontend_ms: Delay between client and engine, which adds to TTFT, ms.
        run: Which run of a file to which vllm bench serve has appended several, from 1 on.
        time_unit: Unit of the file's times, s or ms, where its format does not tell.
        csv: File to write the simulated requests to.
    """
    from jaxserve.limits import LONGEST_TOKENS
    from jaxserve.show.simulation import quantities_table, requests_csv
    from jaxserve.show.terminal import result_console
    from jaxserve.sim.machine.memory import kv_capacity_tokens
    from jaxserve.sim.machine.stack import serve
    from jaxserve.sim.reference.own_log import ServedBy, check_unit, quantities, simulate
    from jaxserve.sim.table.build import build
    from jaxserve.sim.table.file import read_table_file
    from jaxserve.sim.table.measured import Extent, warn_beyond
    from jaxserve.sim.traffic.request_logs import load_request_log

    file = log or trace
    if file is None or (log and trace):
        raise InputError("name one file of requests, by itself or as --trace")
    if csv is not None:
        check_output(csv, "--csv")
    checks.whole("--tier", tier, 0, 2)
    checks.number("--frontend-ms", frontend_ms, 0, 3_600_000)
    if table is not None:
        if tensor_parallel != 1:
            raise InputError("--tensor-parallel goes with --hardware; a --table has its own")
        metadata = read_table_file(table).metadata
    elif hardware is not None and model is not None:
        metadata = build(hardware, model, tensor_parallel=tensor_parallel).metadata
    else:
        raise InputError("name either --table, or --hardware and --model")
    if kv_tokens is None:
        served_by = serve(hardware or metadata.hardware, model or metadata.model, metadata.stack)
        room = kv_capacity_tokens(*served_by, tier, 1.0, False, metadata.tensor_parallel)
        kv_tokens = int(room)
    requests = load_request_log(file, run, time_unit)
    served = simulate(
        requests.trace,
        metadata.cost_model,
        ServedBy(
            kv_tokens=kv_tokens,
            gpus=gpus,
            batch_cap=batch_cap,
            token_budget=metadata.token_budget if token_budget is None else token_budget,
            tier=tier,
            prefix_caching=prefix_caching,
            frontend_s=frontend_ms / 1e3,
        ),
    )
    console = result_console()
    if requests.trace.tick_note is not None:
        console.print(requests.trace.tick_note, soft_wrap=True)
    beyond, _ = requests.trace.beyond_table
    if beyond:
        console.print(
            f"{beyond:,} of {len(requests.trace):,} requests are longer, prompt and output "
            f"together, than the {LONGEST_TOKENS:,} tokens that latency tables know; the cost "
            "model of the table computes them all the same",
            soft_wrap=True,
        )
    lengths = (requests.trace.prompt_tokens, requests.trace.output_tokens)
    warn_beyond(metadata.measured, Extent.of_requests(batch_cap, *lengths))
    found = quantities(requests, served)
    check_unit(found)
    console.print(quantities_table(requests, served, found, kv_tokens))
    if requests.trace.repeated_share is not None:
        cached = served["cached_tokens"].sum() / served["prompt_tokens"].sum()
        console.print(
            f"{requests.trace.repeated_share:.1%} of the prompt tokens are in blocks that the "
            f"trace had before; {cached:.1%} were found cached",
            soft_wrap=True,
        )
    elif prefix_caching:
        console.print("the trace has no hash_ids: no prompt is known to begin like another")
    if csv is not None:
        requests_csv(csv, served)
        console.print(f"wrote {csv}", soft_wrap=True)
