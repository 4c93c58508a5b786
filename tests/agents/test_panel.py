"""Agents by name: every name builds, and the best static setting comes from where it should."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve import datafiles
from jaxserve.agents import panel
from jaxserve.agents.baselines import StaticPolicy
from jaxserve.agents.panel import (
    PRIVILEGED_AGENTS,
    agent_names,
    build_agent,
    load_setting,
    parse_agents,
)
from jaxserve.agents.regime_oracle import RegimeOracle
from jaxserve.errors import InputError
from jaxserve.spaces import DEFAULT_ACTION
from jaxserve.tasks.anchors import Anchors, write_anchors
from jaxserve.tasks.spec import load_task

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
    """Each agent is known under the name of its policy."""
    monkeypatch.setattr(
        "jaxserve.agents.regime_oracle.search_regime_oracle",
        lambda env, static, progress: RegimeOracle(jnp.zeros((4, 2, 6), jnp.int32)),
    )
    setting = dataclasses.replace(load_setting("static_workload"), anchors=ANCHORS)
    for name in agent_names():
        assert build_agent(name, setting).name == name


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
    with pytest.raises(InputError, match=r"agent '.*' is unknown; allowed are all, random"):
        parse_agents(text)


def test_best_static_is_the_frozen_one() -> None:
    """With anchors, their action is used as it is."""
    setting = dataclasses.replace(load_setting("static_workload"), anchors=ANCHORS)
    policy = build_agent("best_static", setting)
    assert isinstance(policy, StaticPolicy)
    assert int(policy.action.batch_cap) == 96


def test_best_static_is_searched_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other hardware there is no frozen setting: a quick search on training seeds finds one."""
    calls = []

    def search(env, keys, **options):
        calls.append((env.name, len(keys), options["progress"]))
        return np.array([13, 10, 0, 0, 0, 0])

    monkeypatch.setattr("jaxserve.agents.search.best_static", search)
    setting = load_setting("static_workload", hardware="h100-sxm-80gb")
    policy = build_agent("best_static", setting)
    assert isinstance(policy, StaticPolicy)
    assert int(policy.action.batch_cap) == 256
    assert calls == [("static_workload", panel._QUICK_EPISODES, None)]


def test_anchors_belong_to_the_task_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They are loaded for the task itself, not for other hardware, and never of another version."""
    shutil.copytree(datafiles.data_dir(), tmp_path / "data")
    for module in ("datafiles", "tasks.anchors"):
        monkeypatch.setattr(f"jaxserve.{module}.data_dir", lambda: tmp_path / "data")
    version = load_setting("static_workload").spec.version
    write_anchors(dataclasses.replace(ANCHORS, task_version=version))
    assert load_setting("static_workload").anchors is not None
    assert load_setting("static_workload").note is None
    other = load_setting("static_workload", hardware="h100-sxm-80gb")
    assert other.anchors is None
    assert other.note == "no scores, because the anchors are for the task's own hardware"
    write_anchors(dataclasses.replace(ANCHORS, task_version=version + 1))
    outdated = load_setting("static_workload")
    assert outdated.anchors is None
    assert "no scores: anchors file" in str(outdated.note)
