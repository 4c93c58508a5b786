"""Sessions in sandboxes that have a copy of the session's folder at another path."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

OWN = "tests.rollouts.sandboxes.user_sandboxes"
SOLVE = """
import os, pathlib
work, home = pathlib.Path.cwd(), pathlib.Path(os.environ["HOME"])
session, artifacts = (pathlib.Path(os.environ[n]) for n in ("SESSION_DIR", "ARTIFACTS_DIR"))
assert (work, home, artifacts) == tuple(session / n for n in ("work", "home", "artifacts"))
assert pathlib.Path("prepared").read_text() == str(session) and session.name == "elsewhere-0.1"
pathlib.Path("old").unlink()
pathlib.Path("add.py").write_text("print('PASSED add')")
(artifacts / "said").write_text("done")
print("in", session)
"""
PREPARE = "import os; open('prepared', 'w').write(os.environ['SESSION_DIR'])"
TESTS = """
import os
assert open(os.environ['ARTIFACTS_DIR'] + '/said').read() == 'done' and not os.path.exists('old')
exec(open('add.py').read())
"""


def test_a_session_elsewhere(service: RunningService, tmp_path: Path) -> None:
    """Every command has the folders as the last one left them, at the path of its sandbox: of
    ``prepare``, the agent with its artifacts, and the evaluator's command. Nothing stays there."""
    source, root = tmp_path / "source", tmp_path / "elsewhere"
    source.mkdir()
    root.mkdir()
    (source / "add.py").write_text("print('FAILED add')")
    (source / "old").touch()
    (source / "tests.py").write_text(TESTS)
    runtime: dict[str, Any] = {"kind": f"{OWN}:Elsewhere", "root": str(root)}
    runtime |= {"source": str(source), "prepare": [[sys.executable, "-c", PREPARE]]}
    evaluator = {"name": "test_on_output", "command": [sys.executable, "tests.py"]}
    evaluator |= {"keep": ["tests.py", "prepared"]}
    runtime["eval_prepare"] = []
    task = service.submit(
        task_id="elsewhere", agent=python(SPEAK + SOLVE), runtime=runtime, evaluator=evaluator
    )
    (one,) = service.result(task)["sessions"]
    assert (one["state"], one["reason"], one["reward"]) == ("COMPLETED", "", 1.0), one
    assert one["evaluation"]["changed"] == 2
    top = tmp_path / "state" / "tasks" / "elsewhere" / "0.1"
    assert (top / "agent.log").read_text() == f"in {root}/elsewhere-0.1\n"
    assert (top / "artifacts" / "said").read_text() == "done"
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    ("fails", "reason"),
    [
        ("put", "the agent: put: the other place is full"),
        ("run", "the agent: run: the other place is full"),
        ("get", "the agent: get: the other place is full"),
        ("run broken", "the agent: the sandbox failed: RuntimeError: no such region"),
        ("end broken", ""),
    ],
)
def test_a_sandbox_that_fails(
    service: RunningService, tmp_path: Path, fails: str, reason: str
) -> None:
    """Is the reason of the session's end, in one sentence, and what was said before is kept."""
    runtime = {"kind": f"{OWN}:Elsewhere", "root": str(tmp_path / "elsewhere"), "fails": fails}
    (one,) = service.result(service.submit(agent=python(SPEAK), runtime=runtime))["sessions"]
    assert (one["state"], one["reason"]) == ("ERROR" if reason else "COMPLETED", reason)
    assert one["completions"] == int(fails in ("get", "end broken"))


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ({"kind": f"{OWN}:Nothing"}, "it must be one of local, docker, apptainer, wrapped, or mod"),
        ({"kind": f"{OWN}:NoSandbox"}, "a class with the methods put, run, get, end"),
        ({"kind": f"{OWN}:Elsewhere"}, "runtime: root is missing; it must be a text"),
        ({"kind": f"{OWN}:Elsewhere", "size": 1}, "runtime: field 'size' is unknown; allowed are "),
    ],
)
def test_a_kind_that_is_wrong(service: RunningService, runtime: Any, message: str) -> None:
    """Is refused when the task comes."""
    task = {"instruction": "do", "agent": {"command": "true"}, "runtime": runtime}
    answer = service.http.post("/rollout/task/submit", json=task)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"]
