"""Commands of the rollout service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import tyro

from jaxserve.checks import one_of
from jaxserve.cli.arguments import needing
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError
from jaxserve.rollouts.dashboard.settings import DashboardSettings
from jaxserve.rollouts.service.settings import NodeSettings, RolloutSettings

_EXTRAS = "gateway,server"

Service = Annotated[str, tyro.conf.arg(metavar="URL")]


Topology = Annotated[Path, tyro.conf.arg(metavar="FILE")]


def serve_rollouts(settings: RolloutSettings, topology: Topology | None = None) -> None:
    """Run agents on submitted tasks, through a gateway that records their completions.

    JAXSERVE_ROLLOUT_TOKEN holds the service's token, JAXSERVE_GATEWAY_CONTROL_TOKEN that of the
    gateway's control and JAXSERVE_ENVIRONMENT_TOKEN that of the environment's server. Without the
    first the service makes a token in ~/.local/state/jaxserve/rollout-PORT.token, where commands
    on this machine find it; the gateway likewise.

    Args:
        settings: Gateway and limits.
        topology: YAML file with these settings and the nodes, in place of other options.
    """
    with needing(_EXTRAS, "the rollout service"):
        from jaxserve.rollouts.service.api.app import run
        from jaxserve.rollouts.service.cluster.topology import read_topology
    if topology is None:
        run(settings)
        return
    if settings != RolloutSettings():
        raise InputError("--topology is given; other options stand in its file then")
    run(read_topology(topology).service)


def run_node(
    settings: NodeSettings, topology: Topology | None = None, node: str | None = None
) -> None:
    """Run a node: agents of a rollout service, and the gateway that records their completions.

    Without a topology the node uses a running gateway. The variables of tokens are those of
    `rollout serve`.

    Args:
        settings: Service, gateway and limits.
        topology: YAML file with these settings, in place of other options.
        node: Name of the node in the topology; optional if there is only one.
    """
    with needing(_EXTRAS, "a node"):
        from jaxserve.rollouts.service.cluster.node import run
        from jaxserve.rollouts.service.cluster.topology import read_topology
    if topology is None:
        run(settings)
        return
    if settings != NodeSettings():
        raise InputError("--topology is given; other options stand in its file then")
    nodes = read_topology(topology).nodes
    name = next(iter(nodes)) if node is None and len(nodes) == 1 else node
    plan = nodes[one_of("--node", name, list(nodes))]
    run(plan.settings, plan.gateway)


def show_dashboard(settings: DashboardSettings) -> None:
    """Serve read-only pages of nodes, tasks, sessions and traces.

    The command prints the pages' address with a token: JAXSERVE_DASHBOARD_TOKEN, or a token that
    the dashboard makes and keeps. JAXSERVE_ROLLOUT_TOKEN holds the service's token; by default the
    dashboard reads it from the service's file.

    Args:
        settings: Service, and address of the pages.
    """
    with needing(_EXTRAS, "the dashboard"):
        from jaxserve.rollouts.dashboard.app import run
    run(settings)


def submit_task(
    task: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    service: Service = "http://127.0.0.1:9100",
) -> None:
    """Submit a task and print its name. The variable of the token is that of `rollout serve`.

    Args:
        task: JSON file with the task.
        service: Address of the rollout service.
    """
    with needing(_EXTRAS, "submit"):
        from jaxserve.rollouts.service.client import ask
    given = read_json(task, f"task {str(task)!r}")
    print(ask(service, "POST", "/rollout/task/submit", given)["task_id"])


def show_status(
    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="[TASK]")] = "",
    service: Service = "http://127.0.0.1:9100",
) -> None:
    """Print a task with its sessions, or the number of sessions by state, as JSON.

    The variable of the token is that of `rollout serve`.

    Args:
        task: Name of a task; all tasks by default.
        service: Address of the rollout service.
    """
    with needing(_EXTRAS, "status"):
        from jaxserve.rollouts.service.client import ask
    path = f"/rollout/task/{quote(task, safe='')}" if task else "/rollout/status"
    print(json.dumps(ask(service, "GET", path), indent=2))


RolloutCommand = (
    Annotated[Any, tyro.conf.subcommand("serve", constructor=serve_rollouts)]
    | Annotated[Any, tyro.conf.subcommand("gateway", constructor=run_node)]
    | Annotated[Any, tyro.conf.subcommand("dashboard", constructor=show_dashboard)]
    | Annotated[Any, tyro.conf.subcommand("submit", constructor=submit_task)]
    | Annotated[Any, tyro.conf.subcommand("status", constructor=show_status)]
)


def rollout_group(command: RolloutCommand) -> None:
    """Run agents on tasks and grade them: the service and its clients."""
    del command  # the subcommand has run
