"""The command ``jaxserve scale``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from jaxserve import checks
from jaxserve.cli.arguments import Directory, File, Name, Number, needing
from jaxserve.errors import InputError


def scale_replicas(
    rule: File = None,
    task: Name = None,
    agent: str = "ppo",
    weights: Directory = None,
    trained_elsewhere: bool = False,
    gateway: Annotated[str, tyro.conf.arg(metavar="URL")] = "http://127.0.0.1:9001",
    start: Annotated[str | None, tyro.conf.arg(metavar="COMMAND")] = None,
    first_port: int = 8000,
    folder: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    kubernetes: Name = None,
    drain_s: float = 120.0,
    act: bool = False,
    windows: Number = None,
    log: File = None,
) -> None:
    """Scale the replicas behind a gateway by a rule of jaxserve autoscale, or by a policy.

    The gateway names an engine for every place, running or not. Without --act the rule or policy is
    asked and nothing is started or stopped.

    Args:
        rule: The file rule.json of jaxserve autoscale.
        task: Task with a fleet whose policy scales, in place of --rule.
        agent: Policy of --task: ppo, best_rule or best_static.
        weights: Directory of a training run, for ppo.
        trained_elsewhere: Allow --act for weights that were trained on something else.
        gateway: Control address of the gateway.
        start: Command of a replica on this machine, with {port} for its port, such as
            "vllm serve MODEL --port {port}".
        first_port: Port of the first replica; the others follow.
        folder: Folder of the replicas' process ids and logs; by default jaxserve-scale beside
            --rule, or here.
        kubernetes: NAMESPACE/NAME of a StatefulSet, in place of --start.
        drain_s: Longest time that a replica which is to stop keeps its requests, in seconds.
        act: Start and stop replicas.
        windows: Windows after which to end; replicas stay as they are then.
        log: File to which a line of JSON is appended for every window.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from jaxserve.cli.live import control_token
    from jaxserve.cli.operate import check_observes, check_trained_here, replica_actuator

    checks.number("--drain-s", drain_s, 0.0, 86_400.0)
    if (rule is None) == (task is None):
        raise InputError("one of --rule and --task says what scales")
    if (start is None) == (kubernetes is None):
        raise InputError("one of --start and --kubernetes says where replicas run")
    with needing("gateway", "scale"):
        from jaxserve.live.gateway_client import GatewayClient, GatewayError
        from jaxserve.live.replicas.scaler import Autoscaler, Scaler, ScalingWindow
    autoscaler: Autoscaler
    if rule is not None:
        from jaxserve.datafiles import read_json
        from jaxserve.live.replicas.rule_autoscaler import RuleAutoscaler
        from jaxserve.scaling.setting import parse_rule

        setting, fleet = parse_rule(read_json(rule, "--rule"), "--rule")
        autoscaler, name = RuleAutoscaler(setting, fleet), setting.kind
    else:
        from jaxserve.agents.panel import build_agent
        from jaxserve.agents.task_setup import load_setup
        from jaxserve.live.replicas.policy_autoscaler import PolicyAutoscaler
        from jaxserve.show.terminal import progress_bars

        check_observes(agent)
        setup = load_setup(str(task), weights=weights)
        if agent == "ppo" and act and not trained_elsewhere:
            check_trained_here("--act scales", setup)
        with progress_bars() as progress:
            autoscaler, name = PolicyAutoscaler(setup, build_agent(agent, setup, progress)), agent
    beside = Path() if rule is None else rule.parent
    where = folder or beside / "jaxserve-scale"
    actuator = replica_actuator(start, first_port, where, kubernetes, autoscaler.most)

    def say(decision: ScalingWindow) -> None:
        print(decision.text(), flush=True)
        if log is not None:
            with open(log, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(decision)) + "\n")

    async def run() -> None:
        async with GatewayClient(gateway, control_token(gateway)) as client:
            scaler = Scaler(autoscaler, client, actuator, acts=act, drain_s=drain_s)
            try:
                await scaler.run(windows, say)
            except GatewayError as error:
                raise InputError(str(error)) from None

    print(
        f"{name}, at most {autoscaler.most} replicas, a look every "
        f"{autoscaler.window_s:g} s{'' if act else '; --act would obey it'}",
        flush=True,
    )
    asyncio.run(run())
