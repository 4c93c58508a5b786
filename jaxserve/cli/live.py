"""Commands about real deployments: tasks for them, their traffic, and logs of their operation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import (
    File,
    Number,
    Task,
    check_outputs,
    import_plots,
    needing,
    text,
)
from jaxserve.errors import InputError

if TYPE_CHECKING:
    from jaxserve.sim.table.file import Calibration

Gateway = Annotated[str, tyro.conf.arg(metavar="URL")]


def make_live_task(
    task: Task,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    table: File = None,
    gateway: Gateway = "http://127.0.0.1:9001",
) -> None:
    """Write a task file for the engines behind a gateway.

    Traffic and objectives are those of another task. The new task locks the knobs that the
    deployment cannot turn, limits the others to the engines' start-up values, and drops the memory
    term. With --table it also limits tier and speculation depth to measured values, and takes the
    measured delay of the front end.

    Args:
        task: Name of a task, or path of a task file, with the traffic and its objectives.
        out: Task file to write, ending in .json.
        table: Latency table of this deployment, see jaxserve calibrate.
        gateway: Control address of the gateway.
    """
    import asyncio
    import json

    from jaxserve.show.outputs import write_output
    from jaxserve.tasks.spec import parse_task, read_task

    check_outputs({"--out": out})
    checks.ending("--out", out, ".json")
    base, name, _ = read_task(task)
    parse_task(base, name)  # errors come before the gateway is asked
    calibration = None if table is None else _calibration(table)
    with needing("gateway", "live-task"):
        from jaxserve.live.gateway_client import GatewayClient, GatewayError
        from jaxserve.live.live_task import derive
        from jaxserve.live.readings import parse_engine_state, parse_knobs

    async def ask() -> tuple[dict[str, Any], Any]:
        async with GatewayClient(gateway, control_token(gateway)) as client:
            try:
                return parse_knobs(await client.knobs()), await client.engines()
            except GatewayError as error:
                raise InputError(str(error)) from None

    knobs, read = asyncio.run(ask())
    engines = parse_engine_state(read, knobs)
    content = derive(base, out.stem, knobs, engines, calibration)
    spec = parse_task(content, out.stem)
    write_output(out, (json.dumps(content, indent=2) + "\n").encode(), "--out")
    for name, offer in knobs["knobs"].items():
        if name in spec.locked:
            limits = spec.limits.get(name)
            shown = "" if limits is None else f", {limits[0]:g} to {limits[1]:g}"
            turned = "" if name in spec.knobs else f", locked at {spec.locked[name]:g}"
            print(f"{name}: {offer['how']}{shown}{turned}")
    for name, engine in knobs["engines"].items():
        if engine.get("reason"):
            print(f"engine {name} offers no other knob: {engine['reason']}")


def _calibration(table: Path) -> Calibration:
    """The calibration of a table."""
    from jaxserve.sim.table.file import read_table_file

    calibration = read_table_file(table).metadata.calibration
    if calibration is None:
        raise InputError(
            f"--table is {table}, which does not say what was measured; it must be one that "
            "jaxserve calibrate wrote"
        )
    return calibration


def send_traffic(
    task: Task,
    url: Annotated[str, tyro.conf.arg(metavar="URL")] = "http://127.0.0.1:9000",
    seed: int = 0,
    split: Literal["train", "validation", "test"] = "test",
    windows: Number = None,
) -> None:
    """Send a task's traffic to a server in time, and print the measured service.

    Args:
        task: Name of a task, or path of a task file.
        url: Gateway or engine; its API key is read from OPENAI_API_KEY.
        seed: Number of the episode in the split.
        split: Episodes for training, for validation, or the held-out test episodes.
        windows: Control windows of traffic; by default a whole episode.
    """
    import asyncio
    import os

    from jaxserve.agents.reference_rollout import episode_traffic
    from jaxserve.agents.task_setup import load_setup
    from jaxserve.seeds import episode_key
    from jaxserve.show.terminal import progress_bars, result_console

    with needing("gateway", "send"):
        from jaxserve.live.engine_client import EngineClient, Target
        from jaxserve.live.figures import summarise
        from jaxserve.live.player import play, stream_of_class
        from jaxserve.live.prompts import RandomPrompts
    from jaxserve.live.show import summary_table

    checks.whole("--seed", seed, 0)
    setup = load_setup(task)
    count = int(setup.env.horizon) if windows is None else checks.whole("--windows", windows, 1)
    requests = episode_traffic(setup.env, episode_key(seed, split), count)

    async def send() -> Any:
        prompts = RandomPrompts(seed)
        async with EngineClient(Target(url, os.environ.get("OPENAI_API_KEY"))) as client:
            await prompts.learn(client)
            with progress_bars() as progress:
                done = 0

                def ended(outcome: object) -> None:
                    nonlocal done
                    done += 1
                    progress("requests", done, len(requests))

                streams = stream_of_class(setup.spec)
                return await play(client, streams, setup.env.slo, requests, prompts, ended)

    outcomes = asyncio.run(send())
    summary = summarise(outcomes, count * setup.env.window_s)
    result_console().print(summary_table(f"{setup.spec.name}, {split} seed {seed}", summary))


def show_live_log(
    log: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    task: Task,
    table: File = None,
    plot: File = None,
) -> None:
    """Show the log of a live episode, and draw it like a simulated one.

    Args:
        log: Log of jaxserve operate.
        task: Task of the log.
        table: Latency table of the deployment.
        plot: Picture to write, ending in .png, .svg or .pdf.
    """
    from jaxserve.agents.task_setup import load_setup
    from jaxserve.live.episode_file import read_episode
    from jaxserve.live.show import live_table
    from jaxserve.show.outputs import write_output
    from jaxserve.show.terminal import result_console

    check_outputs({"--plot": plot})
    setup = load_setup(task, table=text(table))
    episode = read_episode(log, setup.env)
    operated = episode.header.get("task")
    if operated != setup.spec.name:
        raise InputError(f"{log} is of task {operated!r:.60}; --task is {setup.spec.name}")
    result_console().print(live_table(setup, episode))
    if plot is not None:
        plots = import_plots()
        title = f"{setup.spec.title}, measured"
        agent = str(episode.header.get("agent", ""))
        # Nobody measures which of the regimes real traffic is in.
        drawn, regimes = {agent: episode.rollout}, ["real traffic"]
        content = plots.rollout_picture(setup.env, drawn, title, regimes, plot)
        write_output(plot, content, "--plot")


def throw_switch(
    position: Annotated[Literal["off", "on"], tyro.conf.Positional],
    gateway: Gateway = "http://127.0.0.1:9001",
) -> None:
    """Switch all control behind a gateway off, or on again.

    Off puts every engine back to its static values and refuses all commands.

    Args:
        position: Off or on.
        gateway: Control address of the gateway.
    """
    import asyncio

    with needing("gateway", "switch"):
        from jaxserve.live.gateway_client import GatewayClient, GatewayError

    async def throw() -> None:
        async with GatewayClient(gateway, control_token(gateway)) as client:
            try:
                await client.hold(position == "off")
            except GatewayError as error:
                raise InputError(str(error)) from None

    asyncio.run(throw())
    print(f"control is {position}")


def control_token(gateway: str) -> str | None:
    """The token that a gateway asks for on its control routes; None if there is none here."""
    from jaxserve.gateway.http.token_files import CONTROL

    return CONTROL.token(gateway)


def write_dashboard(out: Annotated[Path, tyro.conf.arg(metavar="FILE")]) -> None:
    """Write the Grafana dashboard for gateway and controller.

    Import the file in Grafana, with a Prometheus that scrapes the control port of the gateway and
    the --metrics-port of jaxserve operate.

    Args:
        out: Dashboard to write, ending in .json.
    """
    from jaxserve.datafiles import data_dir
    from jaxserve.show.outputs import write_output

    check_outputs({"--out": out})
    checks.ending("--out", out, ".json")
    write_output(out, (data_dir() / "grafana" / "jaxserve.json").read_bytes(), "--out")
    print(f"wrote {out}")
