"""Agents by name: every name builds, and the best static setting comes from where it should."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve import datafiles
from jaxserve.agents import panel
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.panel import (
    PRIVILEGED_AGENTS,
    agent_names,
    build_agent,
    find_best_static,
    load_setup,
    packaged_weights,
    parse_agents,
    playable,
)
from jaxserve.agents.regime_oracle import RegimeOracle
from jaxserve.errors import InputError
from jaxserve.sim.table.file import read_table_file, table_path, write_table_file
from jaxserve.spaces import DEFAULT_ACTION
from jaxserve.tasks.anchors import Anchors, write_anchors
from jaxserve.tasks.spec import load_task, task_path
from tests.search_results import static_search

ANCHORS = Anchors(
    task="static_workload",
    task_version=1,
    task_digest=load_task("static_workload").digest,
    random=0.1,
    best_static=0.5,
    oracle=0.9,
    best_static_action={**DEFAULT_ACTION, "batch_cap": 96},
    provenance={},
)


def test_every_name_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the two functions of a policy."""
    monkeypatch.setattr(
        "jaxserve.agents.regime_oracle.search_regime_oracle",
        lambda env, static, progress: RegimeOracle(jnp.zeros((4, 2, 6), jnp.int32)),
    )
    setup = dataclasses.replace(load_setup("static_workload"), anchors=ANCHORS)
    for name in agent_names():
        policy = build_agent(name, setup)
        assert callable(policy.init) and callable(policy.act), name


def test_all_is_the_panel_without_exploits() -> None:
    """``all`` stands for the agents worth comparing; a list may repeat names."""
    everyone = parse_agents("all")
    assert everyone[:4] == ("random", "default", "best_static", "heuristic")
    assert "noop" not in everyone and "noop" in agent_names()
    assert not set(PRIVILEGED_AGENTS) & set(everyone)
    assert set(PRIVILEGED_AGENTS) <= set(agent_names())
    assert parse_agents("noop, all,noop") == ("noop", *everyone)


@pytest.mark.parametrize("text", ["", "all,", "ppo2", "Random"])
def test_unknown_agent(text: str) -> None:
    """A name that does not exist is named, with those that do."""
    with pytest.raises(InputError, match=r"agent is '.*'; it must be one of all, random"):
        parse_agents(text)


def test_best_static_is_the_frozen_one() -> None:
    """With anchors, their action is used as it is."""
    setup = dataclasses.replace(load_setup("static_workload"), anchors=ANCHORS)
    policy = build_agent("best_static", setup)
    assert isinstance(policy, StaticPolicy)
    assert int(policy.action.batch_cap) == 96


def test_best_static_is_searched_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other hardware there is no frozen setting: a search on training seeds finds one, with the
    doubt of the table."""
    calls = []

    def search(env, keys, **options):
        calls.append((env is setup.env, len(keys), options["progress"], options["doubt"]))
        return static_search(np.array([13, 10, 0, 0, 0, 0]))

    monkeypatch.setattr(panel, "search_static", search)
    setup = load_setup("static_workload", hardware="h100-sxm-80gb")
    policy = build_agent("best_static", setup)
    assert isinstance(policy, StaticPolicy)
    assert int(policy.action.batch_cap) == 256
    assert calls == [(True, panel._MOST_EPISODES, None, panel._LEAST_DOUBT)]
    assert load_setup("static_workload").doubt == 0.0


def test_a_search_without_knobs_is_refused() -> None:
    """A split needs a second GPU."""
    setup = load_setup("trace_replay", knobs=("prefill_decode_split",))
    with pytest.raises(InputError, match="nothing to search: prefill_decode_split can take one"):
        find_best_static(setup)


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
    """It is loaded with the table that is named for it, and has no scores."""
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
