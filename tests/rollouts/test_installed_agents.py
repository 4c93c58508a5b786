"""Agents as their packages install them, each playing a short episode through the gateway.

``scripts/try_presets.py`` writes its observations of the agents into the presets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxserve.rollouts.presets import load_preset, preset_names
from tests.rollouts.installed_agents import WINDOWS, Stage, install, sent, stage

pytestmark = pytest.mark.deep

TRIED = [name for name in preset_names() if load_preset(name).tried]


@pytest.fixture(scope="module")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A server, an engine and a gateway between."""
    folder = tmp_path_factory.mktemp("agents")
    with stage(folder) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "over_mcp"),
    [(name, False) for name in TRIED] + [(name, True) for name in TRIED if load_preset(name).mcp],
)
def test_it_plays_an_episode(playing: Stage, name: str, over_mcp: bool) -> None:
    """The agent plays with its shell or the server's tools, in the dialect of its preset; every
    window belongs to the completion that asked for it."""
    preset = load_preset(name)
    played = playing.play(preset, install(preset, preset.tried[-1].version), over_mcp=over_mcp)
    assert played.code == 0, played.printed
    assert [window["batch_cap"] for window in played.actions] == [96, 95, 94] == played.caps
    assert played.credited == WINDOWS == len(played.caps)
    assert {record.outcome for record in played.records} == {"completed"}
    assert {record.dialect for record in played.records} == {preset.dialect}
    assert {sent(record).get("stream", False) for record in played.playing} == {preset.streaming}
    trajectory = played.trajectory
    assert not trajectory.dropped
    assert sum(trace.trainable for trace in trajectory.traces) == sum(
        record.sampled for record in played.records
    )
    assert played.instruction != "changed"


@pytest.mark.parametrize("chosen", os.environ.get("JAXSERVE_TRIALS", "").split())
def test_a_trial(playing: Stage, chosen: str) -> None:
    """A version that ``scripts/try_presets.py`` names plays with its shell and over MCP, and what
    was seen is written into the script's folder."""
    name, _, version = chosen.partition("=")
    preset = load_preset(name)
    seen = {"version": version or preset.tried[-1].version}
    programs = install(preset, seen["version"])
    for field in ("seen", "over_mcp") if preset.mcp is not None else ("seen",):
        played = playing.play(preset, programs, over_mcp=field == "over_mcp")
        seen[field] = played.seen()
        print(f"{name} {seen['version']}: {seen[field]}", flush=True)
        assert played.whole, played.printed
    Path(os.environ["JAXSERVE_TRIALS_FOLDER"], f"{name}.json").write_text(json.dumps(seen))
