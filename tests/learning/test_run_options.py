"""What a run is begun with: numbers in range, a description that comes back, its command."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from jaxserve import cli
from jaxserve.agents.task_setup import load_setup
from jaxserve.errors import InputError
from jaxserve.learning import run_options, training
from jaxserve.learning.run_options import (
    check_place,
    check_run,
    command,
    describe,
    described,
)
from jaxserve.sim.table.file import read_table_file, write_table_file
from jaxserve.tasks.spec import task_path

SETUP = load_setup("static_workload")
CONFIG = check_run(800, 0, 2, 16, 2e-3, 0.97)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(steps=0), "steps is 0"),
        (dict(seeds=0), "seeds is 0"),
        (dict(environments=1), "environments is 1"),
        (dict(learning_rate=0.0), "learning_rate is 0"),
        (dict(seed=-1), "seed is -1"),
        (dict(discount=1.0), "discount is 1"),
    ],
)
def test_numbers_out_of_range(change: dict, message: str) -> None:
    """The field is named."""
    settings = dict(steps=100, seed=0, seeds=1, environments=16, learning_rate=1e-3, discount=0.97)
    with pytest.raises(InputError, match=message):
        check_run(**(settings | change))


def test_steps_are_rounded_up_to_rollouts() -> None:
    """One window more than a rollout of all environments is two updates."""
    assert check_run(16 * 25, 0, 1, 16, 1e-3, 0.97).updates == 1
    assert check_run(16 * 25 + 1, 0, 1, 16, 1e-3, 0.97).updates == 2


def test_rollouts_divide_the_horizon() -> None:
    """By as many windows as fit; a horizon that has no such part is named."""
    for horizon, windows in ((200, 25), (60, 20), (49, 7)):
        config = check_run(800, 0, 1, 16, 1e-3, 0.97, horizon=horizon)
        assert config.rollout_windows == windows
    with pytest.raises(InputError, match="the task's horizon is 61; it must be a number with a"):
        check_run(800, 0, 1, 16, 1e-3, 0.97, horizon=61)


def test_days_are_shared() -> None:
    """By groups that fit the number of environments; traffic without days by nobody."""
    for environments, group in ((1024, 4), (18, 2), (15, 1)):
        config = check_run(800, 0, 1, environments, 1e-3, 0.97, demand=True)
        assert config.traffic_group == group
    assert check_run(800, 0, 1, 1024, 1e-3, 0.97).traffic_group == 1


def test_packaged_weights_are_of_a_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever trains into the packaged data has committed what trains; elsewhere, and in a wheel,
    which has no revision, nobody is asked."""
    place = tmp_path / "data" / "weights" / "static_workload"
    monkeypatch.setattr(run_options, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(run_options, "_revision", lambda: "0123456789ab-dirty")
    check_place(tmp_path / "run")
    with pytest.raises(InputError, match="changes that are not committed"):
        training.train(SETUP, CONFIG, (0,), place)
    assert not place.exists()
    for revision in ("0123456789ab", None):
        monkeypatch.setattr(run_options, "_revision", lambda revision=revision: revision)
        check_place(place)


def test_a_description_comes_back() -> None:
    """Through JSON, number by number."""
    text = json.dumps(describe(SETUP, CONFIG, (3, 4)))
    assert described(json.loads(text), "x") == (CONFIG, (3, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {"rate": 1}}, "x: config is not that of this version's learner"),
        ({"config": 7}, "x: config is 7; it must be a JSON object"),
        ({"environments": "many"}, "x: config: environments is 'many'; it must be a whole number"),
        ({"updates": 0}, "x: config: updates is 0; it must be a whole number from 1"),
        ({"recurrent": 1}, "x: config: recurrent is 1; it must be true or false"),
        ({"discount": None}, "x: config: discount is None; it must be a number from 0"),
        ({"seeds": ["a"]}, "x: seeds is 'a'; it must be a whole number"),
        ({"seeds": [True]}, "x: seeds is True; it must be a whole number"),
        ({"seeds": []}, r"x: seeds is \[\]; it must be a list with at least one entry"),
    ],
)
def test_a_description_that_somebody_changed(change: dict[str, Any], message: str) -> None:
    """One sentence that names what is wrong."""
    good = describe(SETUP, CONFIG, (0, 1))
    inside = {name: value for name, value in change.items() if name in good["config"]}
    changed = good | {"config": good["config"] | inside} | (change if not inside else {})
    with pytest.raises(InputError, match=f"^{message}"):
        described(changed, "x")


@pytest.mark.parametrize(
    ("options", "recurrent"),
    [
        ({}, False),
        ({"hardware": "h100-sxm-80gb", "trace": "own trace.csv"}, True),
        ({"table": "mine.parquet", "hardware": "h100-sxm-80gb"}, False),
    ],
)
def test_the_command_makes_the_same_run(
    options: dict[str, str], recurrent: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who types it asks for the same task, files, numbers and seeds, to the last digit."""
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{second},100,20\n" for second in range(250))
    Path("own trace.csv").write_text(f"Timestamp,Request tokens,Response tokens\n{rows}")
    table = read_table_file("llama-3.1-8b__h100-sxm-80gb")
    slower = table.columns | {"itl_ms": 1.1 * table.columns["itl_ms"]}
    write_table_file("mine.parquet", dataclasses.replace(table, columns=slower))
    Path("own.json").write_bytes(task_path("static_workload").read_bytes())
    setup = load_setup("own.json", **options)
    config = check_run(801, 5, 3, 16, 0.1 + 0.2, 1.0 - 1.0 / 47.0, recurrent)
    asked: list[Any] = []

    def train(*arguments: Any, **_: Any) -> None:
        asked.extend(arguments)
        raise InputError("seen")

    monkeypatch.setattr(training, "train", train)
    text = command(setup, config, (5, 6, 7))
    assert text is not None
    assert cli.main(shlex.split(text)[1:]) == 2
    found, found_config, seeds, out = asked
    assert found.inputs == setup.inputs
    assert (found_config, seeds, out) == (config, (5, 6, 7), Path("RUN"))


def test_what_no_command_asks_for_has_none() -> None:
    """Other widths, seeds that are not in a row, a task that Python changed."""
    assert command(SETUP, CONFIG, (0, 1)) is not None
    assert command(SETUP, dataclasses.replace(CONFIG, width=32), (0, 1)) is None
    assert command(SETUP, dataclasses.replace(CONFIG, environments=4), (0, 1)) is None
    assert command(SETUP, CONFIG, (0, 2)) is None
    changed = dataclasses.replace(SETUP, changes={"overrides": {"burst_scale": 2.0}})
    assert command(changed, CONFIG, (0, 1)) is None


def test_knobs_of_ones_own_go_on() -> None:
    """A description that was read from its file is that of the same setup."""
    setup = load_setup("trace_replay", knobs=("batch_cap",), ttft_s=1.0)
    described = describe(setup, CONFIG, (0,))
    assert json.loads(json.dumps(described)) == described
