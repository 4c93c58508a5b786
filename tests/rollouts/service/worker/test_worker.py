"""Sessions whose evaluation fails: what was said is kept, and nothing trains on it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxserve.client import ConnectionLost, ServeClient
from jaxserve.rollouts.files import read_trajectories
from jaxserve.rollouts.service.worker import worker as work
from server.local import LocalServer
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

OWN = "tests.rollouts.evaluators.user_evaluators"
TESTS = {"name": "test_on_output", "command": ["true"]}
UNPREPARED = {"eval_prepare": [["false"]]}


def kept(service: RunningService, folder: Path, reason: str, **task: Any) -> None:
    """Submits a task; its session ends with a reason, its traces without rewards, and its records
    are named."""
    name = service.submit(**{"agent": python(SPEAK), **task})
    (one,) = service.result(name)["sessions"]
    assert (one["state"], one["reason"]) == ("ERROR", reason)
    assert (one["reward"], one["trace_rewards"], one["attempt"]) == (None, [None], 1)
    assert (one["records"], one["completions"], one["traces"]) == (f"{name}.0.1", 1, 1)
    assert one["trainable"] == 3
    (told,) = read_trajectories(folder / f"state/traces/{name}/0.jsonl")
    assert (told.status, told.trainable, told.graded) == ("ERROR", 3, False)
    assert told.traces[0].metadata["task"] == name and told.traces[0].reward is None


def test_refusals_are_no_completions(service: RunningService) -> None:
    """Refused requests are not completions of a session or a task; they are counted by reason."""
    refused = SPEAK.replace('"model": "stub"', '"return_token_ids": True')
    agent = python(f"try:\n    exec({refused!r})\nexcept Exception:\n    pass\n{SPEAK}")
    name = service.submit(agent=agent)
    (one,) = service.result(name)["sessions"]
    assert (one["state"], one["completions"]) == ("COMPLETED", 1)
    assert one["failures"] == {"not_supported": 1}
    (task,) = service.http.get("/tasks").json()["tasks"]
    assert task["completions"] == 1


@pytest.mark.anyio
async def test_a_lost_lease_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A session that was cancelled, or given to another node, ends without a word in the log."""
    ended: list[object] = []

    class Run:
        """A run whose lease is gone."""

        def __init__(self, *parts: object) -> None:
            """Takes the parts of a run."""

        async def finish(self) -> None:
            """Finds that its lease is lost."""
            raise work._LeaseLost

        async def end(self, *reason: object) -> None:
            """Notes an end that nobody may write."""
            ended.append(reason)

    monkeypatch.setattr(work, "_SessionRun", Run)
    parts: Any = SimpleNamespace(pools={}, session=SimpleNamespace(id="t.1"))
    await work.SessionWorker(parts, parts, parts, parts).finish(parts)
    assert not ended and not caplog.records


@pytest.mark.parametrize(
    ("evaluator", "reason"),
    [
        ({"name": f"{OWN}:Fails", "how": "refuses"}, "the judge is away"),
        (
            {"name": f"{OWN}:Fails", "how": "breaks"},
            "the evaluator failed: RuntimeError: no weights",
        ),
        (
            {"name": f"{OWN}:Fails", "how": "no_json"},
            "metadata of the evaluation must be JSON: Type is not JSON serializable: object",
        ),
        (
            {"name": f"{OWN}:Fails", "how": "nan"},
            "outcome_reward is nan; it must be a finite number",
        ),
        (
            {"name": f"{OWN}:Worth", "worth": 1, "traces": [1.0, 1.0]},
            "trace_rewards has 2 entries; it must have one for each of 1 traces",
        ),
        (
            {"name": f"{OWN}:Worth", "worth": 1, "completions": [[1, 0, 1.0], [2, 0, 1.0]]},
            "completion_rewards is (2, 0); it must be of a record and choice of the session",
        ),
    ],
)
def test_an_evaluator_that_fails_throws_nothing_away(
    service: RunningService, tmp_path: Path, evaluator: Any, reason: str
) -> None:
    """However it does."""
    kept(service, tmp_path, reason, evaluator=evaluator)


def test_an_evaluation_that_cannot_be_prepared(service: RunningService, tmp_path: Path) -> None:
    """Neither; and what the agent's run says comes first."""
    prepared = "runtime: eval_prepare[0] ended with exit code 1"
    task = {"evaluator": TESTS, "runtime": UNPREPARED}
    kept(service, tmp_path, prepared, **task)
    agent = python(SPEAK + "raise SystemExit(3)")
    reason = f"the agent ended with exit code 3; {prepared}"
    kept(service, tmp_path, reason, agent=agent, **task)


def test_an_environment_that_is_away_at_the_grade(
    service: RunningService,
    server: LocalServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither."""

    def away(client: ServeClient) -> Any:
        raise ConnectionLost("it is away")

    monkeypatch.setattr(ServeClient, "grade", away)
    kept(
        service,
        tmp_path,
        f"the environment at {server.url} gives no grade: it is away",
        environment={"url": server.url, "task_id": "static_workload", "seed": 1},
        evaluator={"name": "env_grade"},
    )


def test_a_session_that_never_began_names_its_records(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there, and empty."""
    monkeypatch.setattr(work, "_RESET_S", 0.1)
    environment = {"url": "http://127.0.0.1:9", "task_id": "static_workload", "seed": 1}
    (one,) = service.result(
        service.submit(
            agent=python(SPEAK),
            environment=environment,
            evaluator={"name": "env_grade"},
        )
    )["sessions"]
    assert (one["state"], one["reward"], one["attempt"]) == ("ERROR", None, 1)
    assert one["records"] == f"{one['session_id']}.1"
