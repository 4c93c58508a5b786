"""Commands of the rollout service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import tyro

from jaxserve.cli.arguments import needing
from jaxserve.datafiles import read_json
from jaxserve.rollouts.service.settings import RolloutSettings

_EXTRAS = "gateway,server"

Service = Annotated[str, tyro.conf.arg(metavar="URL")]


def serve_rollouts(settings: RolloutSettings) -> None:
    """Run agents on submitted tasks, through a gateway that records what they say.

    Tokens are read from JAXSERVE_ROLLOUT_TOKEN (of the service), JAXSERVE_GATEWAY_CONTROL_TOKEN
    and JAXSERVE_ENVIRONMENT_TOKEN.

    Args:
        settings: Which gateway, and how much of everything.
    """
    with needing(_EXTRAS, "the rollout service"):
        from jaxserve.rollouts.service.serve import run
    run(settings)


def submit_task(
    task: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")],
    service: Service = "http://127.0.0.1:9100",
) -> None:
    """Submit a task, and print its name.

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
    """Print a task with its sessions, or how many sessions are in which state, as JSON.

    Args:
        task: Name of a task; all tasks where none is given.
        service: Address of the rollout service.
    """
    with needing(_EXTRAS, "status"):
        from jaxserve.rollouts.service.client import ask
    path = f"/rollout/task/{quote(task, safe='')}" if task else "/rollout/status"
    print(json.dumps(ask(service, "GET", path), indent=2))


RolloutCommand = (
    Annotated[Any, tyro.conf.subcommand("serve", constructor=serve_rollouts)]
    | Annotated[Any, tyro.conf.subcommand("submit", constructor=submit_task)]
    | Annotated[Any, tyro.conf.subcommand("status", constructor=show_status)]
)


def rollout_group(command: RolloutCommand) -> None:
    """Run agents on tasks and grade them: the service, and commands that speak to it."""
    del command  # has run: it is the result of its command
