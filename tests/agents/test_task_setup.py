"""Setups: a task with its anchors, weights and episodes, on its own deployment or a user's."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxserve import datafiles
from jaxserve.agents.panel import playable
from jaxserve.agents.task_setup import load_setup, packaged_weights
from jaxserve.errors import InputError
from jaxserve.sim.table.file import read_table_file, table_path, write_table_file
from jaxserve.tasks.anchors import write_anchors
from jaxserve.tasks.spec import load_task, task_path
from tests.agents.test_panel import ANCHORS


def test_drawn_traffic_has_any_number_of_episodes() -> None:
    """Its episodes are those of the seeds, and its environment stays as it is."""
    setup = load_setup("static_workload")
    same, keys = setup.episodes("test", 7)
    assert same is setup.env and len(keys) == 7 and setup.training_env is setup.env
    assert len(setup.search_episodes(5)[1]) == 5
    with pytest.raises(InputError, match="split is 'all'"):
        setup.episodes("all", 7)


def test_anchors_belong_to_the_task_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are loaded for the task itself, not for other hardware, and never of another version."""
    shutil.copytree(datafiles.data_dir(), tmp_path / "data")
    for module in ("datafiles", "tasks.anchors"):
        monkeypatch.setattr(f"jaxserve.{module}.data_dir", lambda: tmp_path / "data")
    version = load_setup("static_workload").spec.version
    write_anchors(dataclasses.replace(ANCHORS, task_version=version))
    assert load_setup("static_workload").anchors is not None
    assert load_setup("static_workload").note is None
    other = load_setup("static_workload", hardware="h100-sxm-80gb")
    assert other.anchors is None
    assert other.note == "no scores, because the anchors are for the task's own hardware"
    write_anchors(dataclasses.replace(ANCHORS, task_version=version + 1))
    outdated = load_setup("static_workload")
    assert outdated.anchors is None
    assert "no scores: anchors file" in str(outdated.note)


def test_naming_what_is_the_tasks_own_changes_nothing(tmp_path: Path) -> None:
    """Its GPU, its table, its trace, by name or as a copy: scores and inputs stay."""
    plain = load_setup("trace_replay")
    assert plain.anchors is not None and not plain.changes
    table = tmp_path / "copy.parquet"
    table.write_bytes(table_path(f"{plain.spec.model}__{plain.spec.hardware}").read_bytes())
    named = load_setup(
        "trace_replay", hardware=plain.spec.hardware, table=str(table), trace=plain.spec.trace
    )
    for field in ("anchors", "note", "inputs", "changes", "weights"):
        assert getattr(named, field) == getattr(plain, field)
    for own, other in zip(*map(jax.tree.leaves, (plain.env, named.env)), strict=True):
        np.testing.assert_array_equal(own, other)


def test_what_is_not_the_tasks_own_is_named(tmp_path: Path) -> None:
    """Hardware, table and trace that replace something, as they were given."""
    trace = tmp_path / "mine.csv"
    rows = "".join(f"{second},100,20\n" for second in range(250))
    trace.write_text(f"Timestamp,Request tokens,Response tokens\n{rows}")
    other = load_setup("trace_replay", hardware="h100-sxm-80gb", trace=str(trace))
    assert other.changes == {"hardware": "h100-sxm-80gb", "trace": str(trace)}
    assert other.inputs != load_setup("trace_replay").inputs and other.anchors is None


def test_a_task_without_a_packaged_table(tmp_path: Path) -> None:
    """The setup is loaded with the table that is named for the task, and has no scores."""
    spec = load_task("static_workload")
    (tmp_path / "gpu.json").write_text(json.dumps({"base": spec.hardware}))
    task = json.loads(task_path(spec.name).read_text()) | {"hardware": str(tmp_path / "gpu.json")}
    (tmp_path / "mine.json").write_text(json.dumps(task))
    file = read_table_file(f"{spec.model}__{spec.hardware}")
    own = dataclasses.replace(file.metadata, hardware="gpu")
    write_table_file(tmp_path / "gpu.parquet", dataclasses.replace(file, metadata=own))
    setup = load_setup(str(tmp_path / "mine.json"), table=str(tmp_path / "gpu.parquet"))
    assert set(setup.changes) == {"table"} and setup.anchors is None


def test_weights_that_are_named_must_fit(tmp_path: Path) -> None:
    """A directory without weights, or with those for other knobs, is refused before anybody plays;
    weights that nobody named may be missing."""
    with pytest.raises(InputError, match=r"has no weights\.json"):
        load_setup("static_workload", weights=tmp_path)
    with pytest.raises(InputError, match="the weights are for other knobs than the task's"):
        load_setup("static_workload", weights=packaged_weights("bursty_workload"))
    shutil.copy(task_path("static_workload"), tmp_path / "mine.json")
    assert playable(("ppo", "default"), load_setup(str(tmp_path / "mine.json"))) == ("default",)


def test_a_unit_of_time_and_a_part_go_with_a_trace() -> None:
    """A unit or a part that nothing is read by is a mistake."""
    for own in ({"time_unit": "s"}, {"trace_for": "2h"}, {"trace_sample": 0.5}):
        with pytest.raises(InputError, match="name the trace as well"):
            load_setup("bursty_workload", **own)


def test_a_part_of_the_tasks_own_trace_is_another_trace() -> None:
    """A part has inputs of its own, by which searches are kept, and no scores."""
    whole = load_setup("trace_replay")
    own = whole.spec.trace
    parts = [load_setup("trace_replay", trace=own, trace_for=span) for span in ("5min", "10min")]
    digests = [json.dumps(dict(setup.inputs)) for setup in (whole, *parts)]
    assert len(set(digests)) == 3
    for setup, span_s in zip(parts, (300, 600), strict=True):
        assert setup.trace is not None and setup.trace.duration_s == pytest.approx(span_s, abs=5)
        assert setup.anchors is None and "the task's own trace" in (setup.note or "")
        assert setup.has_parts and next(iter(setup.changes)) == "trace"
