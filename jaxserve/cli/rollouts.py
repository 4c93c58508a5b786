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
    """Run agents on submitted tasks, through a gateway that records their requests.

    Tokens are read from JAXSERVE_ROLLOUT_TOKEN (the service's), JAXSERVE_GATEWAY_CONTROL_TOKEN
    and JAXSERVE_ENVIRONMENT_TOKEN. Without the first, the service makes a token, which commands of
    this machine read from rollout-PORT.token in ~/.local/state/jaxserve; so does the gateway.

    Args:
        settings: Gateway and limits.
        topology: YAML file with the service's settings and its nodes, in place of other options.
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
    """Run a node: agents of a rollout service, and the gateway that records their requests.

    Without a topology the gateway must run already. Tokens are those of `rollout serve`.

    Args:
        settings: Service, gateway and limits.
        topology: YAML file with the node's settings, in place of other options.
        node: Name of the node in the topology; not needed for a single node.
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

    The command prints the address that opens the pages, with a token: JAXSERVE_DASHBOARD_TOKEN, or
    a token that it makes and keeps. The service's token is read from JAXSERVE_ROLLOUT_TOKEN, or
    from the service's file.

    Args:
        settings: Service and address of the pages.
    """
    with needing(_EXTRAS, "the dashboard"):
        from jaxserve.rollouts.dashboard.app import run
    run(settings)


def submit_task(
    task: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    service: Service = "http://127.0.0.1:9100",
) -> None:
    """Submit a task, and print its name. The token is that of `rollout serve`.

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
    """Print a task with its sessions, or the number of sessions in each state, as JSON.

    The token is that of `rollout serve`.

    Args:
        task: Name of a task; without a name, all tasks.
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
    """Run agents on tasks and grade them: the service, its nodes and its clients."""
    del command  # tyro has run the subcommand already
