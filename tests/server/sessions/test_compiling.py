"""What a server compiles before anybody asks for it."""

from __future__ import annotations

import pytest

from jaxserve.tasks.spec import task_names
from server.sessions import compiling, programs
from server.sessions.compiling import Compilation
from server.sessions.programs import Simulator


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What has been, in order; nothing really is, and this process stays as it was."""
    done: list[object] = []

    def note(simulator: Simulator, *, together: bool) -> None:
        done.append((simulator, together))

    monkeypatch.setattr(compiling, "_compile", note)
    monkeypatch.setattr(compiling, "_simulator", str)
    monkeypatch.setattr(compiling, "_grade", lambda: done.append("grade"))
    monkeypatch.setattr(compiling, "gc", _NoCollector)
    monkeypatch.setattr(compiling.jax.config, "update", lambda name, value: None)
    monkeypatch.setattr(programs, "is_compiled", lambda simulator, together: False)
    return done


class _NoCollector:
    freeze = staticmethod(lambda: None)


def test_ahead_all_that_any_task_may_need(compiled: list[object]) -> None:
    """First what the first step needs, then grading, and sessions alone before many together."""
    compilation = Compilation()
    compilation.finish()
    tasks = [(task, many) for many in (False, True) for task in task_names()]
    assert compiled == [("static_workload", False), "grade", *tasks]
    assert not compilation.under_way
    compilation.end()


def test_otherwise_what_is_asked_for(compiled: list[object]) -> None:
    """Only the first step, for which a server waits before it answers."""
    compilation = Compilation(ahead=False)
    compilation.finish()
    assert compiled == [("static_workload", False)] and not compilation.under_way
    asked = programs.simulator(compiling.parse_episode("bursty_workload", 0, "train", None))
    compilation.compiled(asked, together=True).result()
    assert compiled[1:] == [(asked, True)]
    compilation.end()
