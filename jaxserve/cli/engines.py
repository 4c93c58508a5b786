"""Commands about engines: a gateway in front of them, a mock of one, calibration, recording."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import Name, Number, needing
from jaxserve.gateway.settings import GatewaySettings
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.show.outputs import check_output, write_output

_CONTROL_TOKEN = "JAXSERVE_CONTROL_TOKEN"


def run_gateway(settings: GatewaySettings) -> None:
    """Run a gateway in front of vLLM and SGLang servers: routing, admission and measurement.

    JAXSERVE_GATEWAY_TOKEN holds the clients' token, JAXSERVE_GATEWAY_CONTROL_TOKEN the control
    token. With --sessions and without a control token the gateway makes one and keeps it in a
    file, where commands on this machine find it.

    Args:
        settings: Engines, addresses and limits.
    """
    with needing("gateway", "the gateway"):
        from jaxserve.gateway.app.serve import run
    run(settings)


def run_mock_engine(settings: MockEngineSettings) -> None:
    """Run a server with vLLM's routes and no GPU, timed by the reference simulator.

    JAXSERVE_CONTROL_TOKEN and JAXSERVE_STATIC set the control endpoint's token and static knobs,
    as they do for vLLM with the plug-in.

    Args:
        settings: Model, GPU and limits.
    """
    with needing("gateway", "the mock engine"):
        from jaxserve.mock_engine.serve import run
    run(settings)


def calibrate_engine(
    url: Annotated[str, tyro.conf.arg(metavar="URL")],
    hardware: Annotated[str, tyro.conf.arg(metavar="NAME")],
    model: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    plan: CalibrationPlan = CalibrationPlan(),  # noqa: B008
    tensor_parallel: int = 1,
    tier: int = 0,
    token_budget: Number = None,
    key: Name = None,
    gateway: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None,
) -> None:
    """Measure a running engine with an OpenAI-compatible interface, and write its latency table.

    JAXSERVE_CONTROL_TOKEN holds the token of vLLM's plug-in jaxserve-vllm, JAXSERVE_GATEWAY_TOKEN
    that of a gateway. Measurements are kept beside --out until the table is written, and a further
    call goes on from them.

    Args:
        url: Address of the engine, such as http://127.0.0.1:8000.
        hardware: GPU of the engine, for memory, power and price: h100-sxm-80gb, or a GPU file.
        model: Model of the engine, or the nearest known one, for memory.
        out: Table to write, ending in .parquet.
        plan: Points to measure, and the accepted error.
        tensor_parallel: GPUs that share every layer.
        tier: Precision of the weights: 0 = FP16, 1 = INT8, 2 = INT4.
        token_budget: Tokens of one iteration, if the engine does not report it; 2048 by default.
        key: Name of the environment variable with the engine's API key.
        gateway: Address of a gateway for completions, in place of the engine. If the engine shares
            its cores with gateway and clients, the table then includes the time they take.
    """
    from jaxserve.gateway.settings import TOKEN_VARIABLE
    from jaxserve.show.terminal import progress_bars, result_console
    from jaxserve.sim.table.file import write_table_file

    with needing("gateway", "calibrate"):
        from jaxserve.live.calibration.calibrate import (
            Deployed,
            PoorFit,
            calibrate,
            report_sentences,
            report_table,
        )
        from jaxserve.live.engine_client import Target
    check_output(out, "--out")
    checks.ending("--out", out, ".parquet")
    if key is not None and not os.environ.get(key):
        checks.refuse("--key", key, "the name of an environment variable that is set")
    target = Target(
        _without_path(url),
        os.environ[key] if key else None,
        os.environ.get(_CONTROL_TOKEN) or None,
        gateway_url=None if gateway is None else _without_path(gateway),
        gateway_token=os.environ.get(TOKEN_VARIABLE) or None,
    )
    plan.check()
    deployed = Deployed(hardware, model, tensor_parallel, tier, token_budget)
    console = result_console()
    console.print(f"{len(plan.points)} points in at most {plan.minutes:g} minutes", soft_wrap=True)
    kept = out.with_suffix(".measured.json")
    try:
        with progress_bars() as progress:
            report = calibrate(target, plan, deployed, progress, kept)
    except PoorFit as poor:
        console.print(poor.loads.rich())
        raise
    write_table_file(out, report.table)
    kept.unlink(missing_ok=True)
    if report.loads_off.rows:
        console.print(report.loads_off.rich())
    console.print(report_table(report).rich())
    for sentence in report_sentences(report):
        console.print(sentence, soft_wrap=True)
    pool, frontend_s = report.calibration.kv_pool_tokens, report.calibration.frontend_s
    console.print(
        f"KV pool: {f'{pool:,} tokens, as the engine says' if pool else 'that of the GPU named'}; "
        f'for its TTFT: overrides={{"deployment": {{"frontend_s": {frontend_s:.4f}}}}}',
        soft_wrap=True,
    )
    console.print(f"wrote {out}", soft_wrap=True)


def _without_path(url: str) -> str:
    return url.removesuffix("/").removesuffix("/v1")


def record_trace(
    records: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
) -> None:
    """Turn the records of a gateway (--records) into a trace for evaluate and train.

    Args:
        records: Records of a gateway, a line of JSON for each request.
        out: Trace to write, ending in .csv.
    """
    with needing("gateway", "record"):
        from jaxserve.live.record import record, summary
    from jaxserve.show.terminal import result_console

    check_output(out, "--out")
    checks.ending("--out", out, ".csv")
    recording = record(records)
    write_output(out, recording.csv, "--out")
    result_console().print(f"wrote {out}: {summary(recording)}", soft_wrap=True)
