"""Commands in the sandbox of a task's ``runtime``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.rollouts.bounded_process import ProcessExit
from jaxserve.rollouts.sandboxes import parse_sandbox
from jaxserve.rollouts.service.worker.execution import (
    CommandPlace,
    Execution,
    Runtime,
    ServiceVariables,
)
from tests.patience import PATIENCE_S


def session_folder(top: Path) -> Path:
    """A session's folder with ``work`` and ``home``."""
    for name in ("work", "home"):
        (top / name).mkdir(parents=True)
    return top


async def executed(
    runtime: Mapping[str, Any],
    top: Path,
    command: Sequence[str],
    budget_s: float = PATIENCE_S,
    given: bytes = b"",
    **variables: str,
) -> ProcessExit:
    """Runs a command with the variable ``KEY``; its output is in ``printed`` of the folder."""
    made = Runtime(parse_sandbox(JsonObject(runtime, "runtime")), variables=variables)
    execution = Execution(made, top, budget_s, 2**20)
    own = ServiceVariables(execution.inside.home, {"KEY": "SECRET"})
    return await execution.run(command, CommandPlace(own, top / "printed"), given)
