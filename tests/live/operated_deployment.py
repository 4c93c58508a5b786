"""A controller that operates the stand-in of ``tests.live.deployment``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.operate import Conduct, Controller
from jaxserve.live.show import Report
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.spaces import make_action
from tests.live.deployment import Deployment, Moody, virtual

STATIC = {"batch_cap": 48, "kv_budget_fraction": 1.0}
"""the best static setting, which is not that of the engine."""
STEADY: list[float | None] = [40.0]
Script = dict[int, Callable[[Deployment], object]]
"""what happens to a deployment, by the window in which it does."""


class Played:
    """What came of operating a deployment for some windows."""

    def __init__(
        self,
        setup: TaskSetup,
        monkeypatch: pytest.MonkeyPatch,
        path: Path,
        windows: int,
        script: Script | None = None,
        mode: Mode = Mode.GUARDED,
        caps: list[float | None] = STEADY,
        deployment: Deployment | None = None,
        rules: Rules | None = None,
        most_changes: dict[str, int] | None = None,
    ) -> None:
        self.deployment = deployment or Deployment()
        self.log = path / "log.jsonl"
        self.reports: list[Report] = []
        self.in_force: list[float] = []
        """batch cap at the end of each window."""
        script = script or {}

        def tell(report: Report) -> None:
            self.reports.append(report)
            self.in_force.append(self.deployment.in_force()["batch_cap"])
            script.get(report.window, lambda one: None)(self.deployment)

        async def operate() -> None:
            with EpisodeWriter(self.log, {"task": setup.spec.name, "agent": "moody"}) as log:
                conduct = Conduct(mode, rules or Rules(recover=3), most_changes=most_changes or {})
                client: Any = self.deployment
                policy: Any = Moody(caps)
                static = make_action(**STATIC)
                await Controller(setup, policy, static, client, log, conduct).run(windows, tell)

        virtual(monkeypatch, self.deployment)
        asyncio.run(operate())

    @property
    def reasons(self) -> list[str | None]:
        return [report.reason for report in self.reports]

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """Of the log."""
        entries = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [entry for entry in entries if entry["kind"] == kind]


Play = Callable[..., Played]
"""``Played`` of the fixtures' task and folder."""
