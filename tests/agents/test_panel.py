"""Agents by name: every name builds, and the best static setting comes from where it should."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.agents import panel
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.panel import (
    PRIVILEGED_AGENTS,
    agent_names,
    build_agent,
    find_best_static,
    parse_agents,
)
from jaxserve.agents.regime_oracle import RegimeOracle
from jaxserve.agents.task_setup import _MIN_DOUBT, MAX_SEARCH_EPISODES, load_setup
from jaxserve.errors import InputError
from jaxserve.spaces import KNOBS
from tests.search_results import anchors_of, static_search

ANCHORS = anchors_of("static_workload", 0.1, 0.5, 0.9, batch_cap=96)


def test_every_name_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has the two functions of a policy."""
    monkeypatch.setattr(
        "jaxserve.agents.regime_oracle.search_regime_oracle",
        lambda env, static, progress: RegimeOracle(jnp.zeros((4, 2, len(KNOBS)), jnp.int32)),
    )
    setup = dataclasses.replace(load_setup("static_workload"), anchors=ANCHORS)
    for name in set(agent_names()) - {"best_rule"}:  # it needs a fleet: test_scaling
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


@pytest.mark.parametrize("text", ["", "all,", "ppo2", "chance"])
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
        return static_search(np.array([13, 10, 0, 0, 0, 0, 0]))

    monkeypatch.setattr(panel, "search_static", search)
    setup = load_setup("static_workload", hardware="h100-sxm-80gb")
    policy = build_agent("best_static", setup)
    assert isinstance(policy, StaticPolicy)
    assert int(policy.action.batch_cap) == 256
    assert calls == [(True, MAX_SEARCH_EPISODES, None, _MIN_DOUBT)]
    assert load_setup("static_workload").doubt == 0.0


def test_a_search_without_knobs_is_refused() -> None:
    """A split needs a second GPU."""
    setup = load_setup("trace_replay", knobs=("prefill_decode_split",))
    with pytest.raises(InputError, match="nothing to search: prefill_decode_split can take one"):
        find_best_static(setup)
