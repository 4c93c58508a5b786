"""The result of a task is the same in every answer."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from jaxserve.rollouts.service.api import results
from jaxserve.rollouts.service.api.results import ResultPusher, task_result
from jaxserve.rollouts.service.settings import RolloutSettings
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.lifecycle import COMPLETED, ERROR, RUNNING

SPEC: dict[str, Any] = {"instruction": "do", "agent": {"command": "true"}}
RESULTS: tuple[tuple[str, dict[str, Any]], ...] = (
    (COMPLETED, {"reward": 1.0, "traces": 2, "completions": 5}),
    (COMPLETED, {"reward": 0.25, "traces": 1, "completions": 2}),
    (ERROR, {"reward": None, "traces": 1, "completions": 1}),
    (ERROR, {"reward": None}),
)
"""Results of sessions that were graded, that could not be graded, and that ended before."""


def test_the_list_of_tasks_agrees_with_their_results(tmp_path: Path) -> None:
    """Further fault: means of completions were taken of two different things. The list has the sums
    of what a task's result tells of its sessions, which the page compares the means of; who has no
    number counts in neither."""
    state = StateDatabase(tmp_path / "state.sqlite3")
    state.submit("t", SPEC, len(RESULTS) + 1, False)
    state.submit("none", SPEC, 1, False)
    for sample, (ended, result) in enumerate(RESULTS):
        state.move(f"t.{sample}", ended, result=result)
    state.move(f"t.{len(RESULTS)}", RUNNING)
    listed = {one["task_id"]: one for one in state.tasks()}
    found, empty = task_result(state, "t"), task_result(state, "none")
    told = {
        name: [one[name] for one in found["sessions"] if one.get(name) is not None]
        for name in ("reward", "traces", "completions")
    }
    assert listed["t"]["mean_reward"] == found["mean_reward"] == fmean(told["reward"]) == 0.625
    for name, total in (("traces", 4), ("completions", 8)):
        assert listed["t"][name] == sum(told[name]) == total
        assert len(told[name]) == 3
    assert empty["mean_reward"] is listed["none"]["mean_reward"] is None
    assert listed["none"]["completions"] is None
    state.close()


@pytest.mark.anyio
async def test_a_result_is_pushed_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that is away for a minute, or for a night, gets it; waits grow to 60 s."""
    state = StateDatabase(tmp_path / "state.sqlite3")
    state.submit("t", {**SPEC, "callback_url": "http://127.0.0.1:1/"}, 1, False)
    pusher = ResultPusher(state, RolloutSettings.callback_attempts)
    waits_s: list[float] = []

    async def wait(seconds: float) -> None:
        waits_s.append(seconds)

    async def refused(*request: object, **content: object) -> None:
        raise httpx.ConnectError("refused")

    # Of this module only: servers of other tests may sleep in their threads.
    monkeypatch.setattr(results, "asyncio", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(pusher._http, "post", refused)
    await pusher._push("t", 0)
    assert max(waits_s) == 60.0 and 86_000 < sum(waits_s) < 90_000
    state.close()
