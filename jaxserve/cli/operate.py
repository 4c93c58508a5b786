"""The command ``jaxserve operate``, and what it shares with ``jaxserve scale``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import (
    Directory,
    File,
    Name,
    Number,
    Real,
    Task,
    needing,
    optional,
    text,
)
from jaxserve.cli.live import Gateway, control_token
from jaxserve.errors import InputError

if TYPE_CHECKING:
    from jaxserve.agents.policy import Policy
    from jaxserve.agents.task_setup import TaskSetup
    from jaxserve.live.fleet import Actuator
    from jaxserve.live.show import Report
    from jaxserve.types import ServeAction


def operate_gateway(
    task: Task,
    log: Annotated[Path, tyro.conf.arg(metavar="FILE")],
    gateway: Gateway = "http://127.0.0.1:9001",
    agent: str = "ppo",
    weights: Directory = None,
    table: File = None,
    mode: Literal["off", "shadow", "guarded", "free"] = "shadow",
    trained_elsewhere: bool = False,
    most_changes: Annotated[str | None, optional("KNOB=N,...")] = None,
    start: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None,
    first_port: int = 8000,
    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    kubernetes: Name = None,
    drain_s: float = 120.0,
    windows: Number = None,
    answer_s: Real = None,
    metrics_port: Number = None,
    metrics_host: str = "127.0.0.1",
) -> None:
    """Operate the engines behind a gateway by a policy.

    Mode shadow turns nothing: it prints the policy's commands and the simulator's expectations.
    After any fault the best static setting is in force until some windows were without one; if it
    cannot be commanded, engines return to their own static values. For a task with a fleet the
    gateway names an engine for every place, running or not; where it opens replicas, --start or
    --kubernetes says where they run, and otherwise something else scales them. The control token is
    read from JAXSERVE_GATEWAY_CONTROL_TOKEN, or from the gateway's token file.

    Args:
        task: Task file that jaxserve live-task made for this deployment.
        log: Log file; every control window adds a line.
        gateway: Control address of the gateway.
        agent: Policy: ppo, heuristic, best_static, default or random.
        weights: Directory of a training run, for ppo.
        table: Latency table of this deployment, see jaxserve calibrate.
        mode: Mode of the controller.
        trained_elsewhere: Allow modes guarded and free for weights that were trained on something
            else.
        most_changes: Most changes of each named knob per minute by the policy, for example
            batch_cap=2,kv_budget_fraction=0; 0 keeps its value. Falling back is not limited.
        start: Command of a replica on this machine, with {port} for its port, such as
            "vllm serve MODEL --port {port}".
        first_port: Port of the first replica; the others follow.
        folder: Folder of the replicas' process ids and logs; by default jaxserve-scale beside
            --log.
        kubernetes: NAMESPACE/NAME of a StatefulSet, in place of --start.
        drain_s: Longest time that a replica which is to stop keeps its requests, in seconds.
        windows: Number of control windows; without it, the command runs until stopped.
        answer_s: Time for an answer of the gateway, s, at most half a window; by default a quarter.
        metrics_port: Port for Prometheus (/metrics) and the server's page (/log); 0 takes a free
            one.
        metrics_host: Address of that port; other than loopback needs
            JAXSERVE_GATEWAY_CONTROL_TOKEN, which readers then send as a bearer token.
    """
    import asyncio
    import dataclasses
    import sys
    import time
    from contextlib import ExitStack

    from jaxserve.agents.panel import best_static_policy, build_agent
    from jaxserve.agents.task_setup import load_setup
    from jaxserve.gateway.settings import AccessTokens
    from jaxserve.live.guard import parse_most_changes
    from jaxserve.live.show import print_heading, print_report
    from jaxserve.show.terminal import progress_bars

    check_observes(agent)
    if windows is not None:
        checks.whole("--windows", windows, 1)
    if metrics_port is not None:
        checks.whole("--metrics-port", metrics_port, 0, 65535)
    with needing("gateway", "operate"):
        from jaxserve.live.episode_file import EpisodeWriter
        from jaxserve.live.exporter import ControllerMetrics, exported
        from jaxserve.live.fleet import FleetControl
        from jaxserve.live.gateway_client import GatewayClient
        from jaxserve.live.operate import Conduct, Controller
        from jaxserve.live.supervisor import Mode
    setup = load_setup(task, table=text(table), weights=weights)
    scales = "replicas" in setup.spec.knobs
    if scales and (start is None) == (kubernetes is None):
        raise InputError(
            f"--task is {setup.spec.name}, which opens replicas; one of --start and --kubernetes "
            "says where they run"
        )
    if not scales and (start is not None or kubernetes is not None):
        raise InputError(
            f"--task is {setup.spec.name}, which does not open replicas; --start and --kubernetes "
            "are for a task that does"
        )
    checks.number("--drain-s", drain_s, 0.0, 86_400.0)
    window_s = float(setup.env.window_s)
    # A later answer would miss the deadline of the window's decision.
    patience_s = window_s / 4 if answer_s is None else answer_s
    checks.number("--answer-s", patience_s, 0.001, window_s / 2)
    most = {}
    if most_changes is not None:
        most = parse_most_changes("--most-changes", most_changes, setup.spec.knobs)
    # Traffic is real: weights trained on a trace are as good as weights trained on the regimes.
    played = dataclasses.replace(
        setup, inputs={name: one for name, one in setup.inputs.items() if name != "trace"}
    )
    if agent == "ppo" and Mode(mode).steers and not trained_elsewhere:
        check_trained_here(f"--mode {mode} turns knobs", played)
    metrics = ControllerMetrics(setup.spec.name, agent, mode)

    def report(found: Report) -> None:
        metrics.add(found, time.time())
        print_report(found)

    places = round(float(setup.env.deployment.num_gpus))
    actuator = None
    if scales:
        where = folder or log.parent / "jaxserve-scale"
        actuator = replica_actuator(start, first_port, where, kubernetes, places)

    async def operate(policy: Policy, static: ServeAction) -> None:
        with EpisodeWriter(log, header) as writer:
            async with GatewayClient(gateway, control_token(gateway), patience_s) as client:
                conduct = Conduct(Mode(mode), most_changes=most)
                fleet = None
                if setup.env.deployment.fleet is not None:
                    fleet = FleetControl(client, actuator, places, drain_s)
                controller = Controller(setup, policy, static, client, writer, conduct, fleet)
                await controller.run(windows, report, lambda: print_heading(window_s))

    header = {
        "task": setup.spec.name,
        "inputs": dict(setup.inputs),
        "agent": agent,
        "mode": mode,
        "most_changes": most,
    }
    with ExitStack() as serving:
        if metrics_port is not None:
            token = AccessTokens.from_environment().control
            served = exported(metrics_host, metrics_port, metrics, log, token)
            print(f"jaxserve: metrics at {serving.enter_context(served)}/metrics", file=sys.stderr)
        print("jaxserve: searching the best static setting, and compiling", file=sys.stderr)
        with progress_bars() as progress:
            policy = build_agent(agent, played, progress)
            static = best_static_policy(setup, progress).action
        asyncio.run(operate(policy, static))


def replica_actuator(
    start: str | None, first_port: int, folder: Path, kubernetes: str | None, most: int
) -> Actuator:
    """The actuator that starts and stops replicas, from the options of a command.

    Args:
      start: command of a replica; None for pods.
      first_port: port of the first replica.
      folder: folder of the processes' ids and logs.
      kubernetes: NAMESPACE/NAME of a StatefulSet, without ``start``.
      most: places for replicas.

    Raises:
      InputError: an option has a wrong value, or there is no cluster.
    """
    if start is not None:
        from jaxserve.live.replicas.local_processes import LocalProcesses

        checks.whole("--first-port", first_port, 1, 65_536 - most)
        return LocalProcesses(start, first_port, folder)
    namespace, slash, pods = str(kubernetes).partition("/")
    if not (namespace and slash and pods):
        checks.refuse("--kubernetes", kubernetes, "NAMESPACE/NAME of a StatefulSet")
    with needing("kubernetes", "--kubernetes"):
        from jaxserve.live.replicas.kubernetes_scale import KubernetesScale
    return KubernetesScale(namespace, pods)


def check_observes(agent: str) -> None:
    """Raises InputError for an agent that needs more than a gateway can show."""
    from jaxserve.agents.panel import PRIVILEGED_AGENTS

    if agent in PRIVILEGED_AGENTS:
        raise InputError(
            f"--agent is {agent}, which is shown the simulator's state; no gateway has it"
        )


def check_trained_here(acts: str, setup: TaskSetup) -> None:
    """Refuses weights that were trained on something else than ``setup``.

    Args:
      acts: option with what it does by the weights, for the error.

    Raises:
      InputError: the weights were trained on something else.
    """
    from jaxserve.agents.trained_on import trained_elsewhere

    sentence = trained_elsewhere(setup.weights, setup)
    if sentence is not None:
        raise InputError(f"{sentence}; {acts} by them with --trained-elsewhere")
