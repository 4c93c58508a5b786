"""What a comparison refuses, and the reference simulator in processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jaxserve.agents.panel import build_agent
from jaxserve.agents.task_setup import load_setup
from jaxserve.errors import InputError
from jaxserve.studies.compare.protocol import Case, prepare, reference_objectives
from jaxserve.tasks.spec import load_task
from tests.sizes import EPISODES

ARGUMENTS: dict[str, Any] = dict(seeds=2, steps=800, episodes=EPISODES, hardware="a100-sxm-80gb")


def case(out: Path, **changes) -> Case:
    """A comparison that takes seconds."""
    task = changes.pop("task", "static_workload")
    return prepare(task, out, trace=None, recorded=None, **ARGUMENTS | changes)


def test_a_task_without_anchors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them there are no scores to compare."""
    monkeypatch.setattr("jaxserve.tasks.anchors.data_dir", lambda: tmp_path)
    with pytest.raises(InputError, match="task static_workload has no anchors"):
        case(tmp_path)


@pytest.mark.slow
def test_the_reference_simulator_in_real_processes() -> None:
    """Each policy's row is its own, in order, whichever process was first."""
    spec = load_task("static_workload")
    setup = load_setup("static_workload")
    seen = []
    found = reference_objectives(
        spec,
        [build_agent(name, setup) for name in ("noop", "best_static")],
        2,
        lambda done, total: seen.append((done, total)),
    )
    assert found.shape == (2, 2) and seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (found[1] > found[0] + 0.3).all()
