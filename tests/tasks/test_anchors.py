"""Anchors: scores are a fixed function of the mean reward, and stale anchors are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError
from jaxserve.spaces import DEFAULT_ACTION
from jaxserve.tasks import anchors as module
from jaxserve.tasks.anchors import (
    Anchors,
    anchors_path,
    anchors_score,
    load_anchors,
    parse_anchors,
    write_anchors,
)
from jaxserve.tasks.spec import TaskSpec, load_task, task_names

ANCHORS = Anchors(
    task="static_workload",
    task_version=1,
    task_digest=load_task("static_workload").digest,
    random=-0.2,
    best_static=0.6,
    oracle=0.8,
    best_static_action={**DEFAULT_ACTION, "batch_cap": 64},
    provenance={"episodes": 64},
)


@pytest.fixture
def spec() -> TaskSpec:
    """The task that ANCHORS is of."""
    return dataclasses.replace(load_task("static_workload"), version=1)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ANCHORS in a data directory of their own; the file's path."""
    monkeypatch.setattr(module, "data_dir", lambda: tmp_path)
    return write_anchors(ANCHORS)


@pytest.mark.parametrize(
    ("mean_reward", "score"),
    [(-9.0, 0.0), (-0.2, 0.0), (0.2, 0.25), (0.6, 0.5), (0.7, 0.75), (0.8, 1.0), (9.0, 1.0)],
)
def test_score_is_piecewise_linear_and_clipped(mean_reward: float, score: float) -> None:
    """Random scores 0, best static 0.5, the oracle 1."""
    assert anchors_score(ANCHORS, mean_reward) == pytest.approx(score)


@given(st.floats(-1.0, 1.5), st.floats(-1.0, 1.5))
def test_score_never_ranks_against_the_reward(first: float, second: float) -> None:
    """More reward never scores less, so reward and score rank policies alike."""
    low, high = sorted((first, second))
    assert 0.0 <= anchors_score(ANCHORS, low) <= anchors_score(ANCHORS, high) <= 1.0


def test_written_anchors_load(stored: Path, spec: TaskSpec) -> None:
    """What the search command writes is what the grader reads."""
    assert stored == anchors_path("static_workload")
    assert load_anchors(spec) == ANCHORS
    assert list(stored.parent.iterdir()) == [stored]


def test_stale_or_missing_anchors_name_the_command(stored: Path, spec: TaskSpec) -> None:
    """A changed task cannot be scored with old anchors."""
    with pytest.raises(InputError, match=r"version 2; `jaxserve search static_workload`"):
        load_anchors(dataclasses.replace(spec, version=2))
    with pytest.raises(InputError, match=r"has changed since .*`jaxserve search static_workload`"):
        load_anchors(dataclasses.replace(spec, digest="other"))
    stored.unlink()
    with pytest.raises(InputError, match=r"no anchors.*`jaxserve search static_workload`"):
        load_anchors(spec)


def test_anchors_of_another_task_are_refused(stored: Path) -> None:
    """A copied file does not pass for another task's."""
    other = dataclasses.replace(load_task("bursty_workload"), version=1)
    anchors_path(other.name).write_bytes(stored.read_bytes())
    with pytest.raises(InputError, match="task is 'static_workload'"):
        load_anchors(other)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_broken_files_end_in_a_sentence(stored: Path, spec: TaskSpec, content: bytes) -> None:
    """No traceback of the parser reaches a user."""
    stored.write_bytes(content)
    with pytest.raises(InputError, match="anchors"):
        load_anchors(spec)


NO_ACTION = {knob: value for knob, value in DEFAULT_ACTION.items() if knob != "batch_cap"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"spec_version": 2}, "spec_version"),
        ({"surprise": 1}, "surprise"),
        ({"task": ""}, "task"),
        ({"task_version": "1"}, "task_version"),
        ({"random": float("nan")}, "random"),
        ({"random": None}, "random"),
        ({"best_static": True}, "best_static"),
        ({"oracle": float("inf")}, "oracle"),
        ({"random": 0.6}, "it must be three rising rewards"),
        ({"oracle": 0.6}, "it must be three rising rewards"),
        ({"best_static_action": None}, "best_static_action"),
        ({"best_static_action": NO_ACTION}, "batch_cap"),
        ({"best_static_action": {**DEFAULT_ACTION, "batch_cap": 0}}, "batch_cap"),
        ({"best_static_action": {**DEFAULT_ACTION, "warp": 0}}, "warp"),
        ({"best_static_action": {knob: [1, 1] for knob in DEFAULT_ACTION}}, "best_static_action"),
        ({"provenance": "search"}, "provenance"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], named: str) -> None:
    """Anchors are validated field by field."""
    data = {"spec_version": 1} | dataclasses.asdict(ANCHORS) | changes
    with pytest.raises(InputError, match="anchors") as error:
        parse_anchors(data)
    assert named in str(error.value)


def test_anchors_that_would_not_load_are_not_written(stored: Path, spec: TaskSpec) -> None:
    """A failed search leaves the old file."""
    with pytest.raises(InputError, match="it must be three rising rewards"):
        write_anchors(dataclasses.replace(ANCHORS, random=0.9))
    assert load_anchors(spec) == ANCHORS


@pytest.mark.parametrize("task", task_names())
def test_packaged_anchors_belong_to_the_task(task: str) -> None:
    """Every file in data/anchors is valid, of the task's version, and turns only its knobs."""
    spec = load_task(task)
    anchors = load_anchors(spec)
    for knob, value in anchors.best_static_action.items():
        if knob not in spec.knobs:
            assert value == pytest.approx(spec.locked[knob])
    assert json.loads(anchors_path(task).read_text())["provenance"]


def test_anchors_of_a_task_file_lie_beside_it(tmp_path: Path) -> None:
    """Also where the file has a built-in task's name, whose anchors are of another task."""
    file = tmp_path / "static_workload.json"
    file.write_bytes((data_dir() / "tasks" / file.name).read_bytes())
    spec = load_task(str(file))
    with pytest.raises(InputError, match=f"`jaxserve search {file}` computes them"):
        load_anchors(spec)
    anchors = dataclasses.replace(ANCHORS, task_version=spec.version)
    assert write_anchors(anchors, spec.file) == tmp_path / "static_workload.anchors.json"
    assert load_anchors(spec) == anchors
    assert load_anchors(load_task("static_workload")) != anchors
