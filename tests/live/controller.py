"""A controller beside real servers: ``python -m tests.live.controller TASK GATEWAY LOG``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.gateway_client import GatewayClient
from jaxserve.live.operate import Conduct, Controller
from jaxserve.live.show import Report
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.spaces import make_action
from tests.live.deployment import Moody, setup_of


async def operate(
    setup: TaskSetup, control: str, log: Path, tell: Callable[[Report], None]
) -> None:
    """Wants a cap of 40, and 48 where it has fallen, until it is stopped."""
    with EpisodeWriter(log, {"task": setup.spec.name, "agent": "moody"}) as writer:
        async with GatewayClient(control, patience_s=setup.spec.window_s / 4) as client:
            # Goodput is not what is tried, and a busy machine may lack it.
            conduct = Conduct(Mode.GUARDED, Rules(recover=2, fewest=1e9))
            policy: Any = Moody([40.0])
            static = make_action(batch_cap=48)
            await Controller(setup, policy, static, client, writer, conduct).run(None, tell)


if __name__ == "__main__":
    task, control, log = sys.argv[1:]
    asyncio.run(operate(setup_of(task), control, Path(log), lambda report: None))
