"""Rules on recorded demand in both simulators, and the command."""

from __future__ import annotations

import csv
import dataclasses
import json
from datetime import datetime, timedelta
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from jaxserve.autoscale.confirm import play_reference
from jaxserve.autoscale.play import FleetPlayer
from jaxserve.autoscale.setup import FleetDemand, attainment, load_demand
from jaxserve.cli import main
from jaxserve.scaling.readings import histogram_quantile
from jaxserve.scaling.setting import STATIC, RuleSetting
from jaxserve.sim.machine.fleet import FleetSettings
from jaxserve.sim.table.file import read_table_file
from tests.quick_compiler import programs_compute

TABLE = "qwen2.5-32b__h100-sxm-80gb"
STAGES = ((3, 300), (12, 600), (2, 500))
"""Requests a second and seconds: up to three times what a replica bears, and down again."""


def write_trace(path: Path, stages: tuple[tuple[float, int], ...] = STAGES) -> Path:
    """Poisson requests of the stages."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        start = datetime(2026, 1, 1)
        for rate, seconds in stages:
            for at in np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds))):
                lengths = rng.integers(400, 2000), rng.integers(100, 400)
                writer.writerow(((start + timedelta(seconds=at)).isoformat(" "), *lengths))
            start += timedelta(seconds=seconds)
    return path


@pytest.fixture(scope="module")
def demand(tmp_path_factory: pytest.TempPathFactory) -> FleetDemand:
    """A fleet of up to four replicas under the staircase."""
    trace = write_trace(tmp_path_factory.mktemp("demand") / "trace.csv")
    settings = FleetSettings((45.0, 75.0), drain_s=40.0)
    return load_demand(
        4, settings, 64, 0.95, table=TABLE, trace=str(trace), ttft_s=2.0, tpot_s=0.06
    )


@pytest.mark.deep
def test_both_simulators_agree_on_what_rules_do(demand: FleetDemand) -> None:
    """Through start-ups, drains and a scale-down under load: requests inside their objectives
    within 4 points, replicas rented within a tenth, and all requests end in both."""
    lanes = [
        RuleSetting(STATIC, (2.0,)),
        RuleSetting("hpa_running", (24.0, 120.0)),
        RuleSetting("slo_law", (0.55, 0.40, 60.0)),
    ]
    whole = slice(0, demand.windows)
    fast = demand.player().play(lanes, [whole])
    timer = read_table_file(TABLE).metadata.cost_model
    inside, rented_s = attainment(fast), np.asarray(fast.rented_s, float).sum(axis=1)
    ended = np.asarray(fast.ended, float).sum(axis=1)
    for index, lane in enumerate(lanes):
        played = play_reference(demand, lane, timer, whole)
        assert inside[index] == pytest.approx(played.attainment, abs=0.04), lane
        assert rented_s[index] == pytest.approx(played.rented_s.sum(), rel=0.1), lane
        assert ended[index] == pytest.approx(played.ended.sum(), rel=0.02), lane
        assert played.ended.sum() == pytest.approx(played.arrivals.sum(), rel=0.02)


@pytest.mark.deep
def test_longer_starts_cost_attainment_and_scaling_saves(demand: FleetDemand) -> None:
    """Under one rule fewer requests are inside with longer start-ups, and a rule rents less than
    the static fleet that serves as many."""
    lanes = [RuleSetting("sky_serve", (0.8, 15.0, 60.0), start_s) for start_s in (0.0, 60.0, 300.0)]
    played = demand.player().play([*lanes, RuleSetting(STATIC, (4.0,))], [slice(0, demand.windows)])
    inside, rented_s = attainment(played), np.asarray(played.rented_s, float).sum(axis=1)
    assert inside[0] > inside[1] > inside[2]
    assert rented_s[0] < 0.8 * rented_s[3]
    assert inside[0] > 0.9


def test_recordings_of_any_length_and_fleets_of_any_numbers_share_a_program(
    demand: FleetDemand,
) -> None:
    """The compiler is given arrays of the same shapes and types, in the same structure."""
    counts = np.asarray(demand.env.workload.replay_counts)
    players = [demand.player_of_one(counts[:windows]) for windows in (30, 50)]
    players[1].fleet = dataclasses.replace(players[1].fleet, requests_per_s=7.0, most=3)

    def seen(player: FleetPlayer) -> object:
        leaves, structure = jax.tree.flatten((player.env, player.action, player.fleet))
        return [jax.typeof(leaf) for leaf in leaves], structure

    assert seen(players[0]) == seen(players[1])


@pytest.mark.deep  # tests/test_readme.py runs the command
@programs_compute()
def test_the_command_names_a_rule_and_writes_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rules, two turns of the staircase: a table, sentences, and three files."""
    trace = write_trace(tmp_path / "trace.csv", (*STAGES, *STAGES))
    out = tmp_path / "scaled"
    words = f"autoscale --trace {trace} --max-replicas 4 --out {out} --table {TABLE} --start-s 30"
    words += " --ttft 2 --tpot 0.06 --batch-cap 64 --rules sky_serve,hpa_running"
    assert main(words.split()) == 0
    answer = json.loads((out / "autoscale.json").read_text())
    assert (out / "curves.png").stat().st_size > 10_000
    assert answer["winner"]["kind"] in ("static", "sky_serve", "hpa_running")
    assert answer["winner"]["mean_replicas"] < 3.0
    assert {row["kind"] for row in answer["rules"]} == {"sky_serve", "hpa_running"}
    assert len(answer["by_start_s"]) in (0, 5)
    both = answer["confirmed"]
    assert both["reference"]["attainment"] == pytest.approx(both["fast"]["attainment"], abs=0.05)
    (config,) = out.glob("*.yaml")
    assert yaml.safe_load(config.read_text())
    printed = capsys.readouterr().out
    assert "A replica bears" in printed
    assert "Reference simulator" in printed


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--max-replicas 9", "max_replicas is 9; it must be a whole number from 2 to 8"),
        ("--max-replicas 1", "max_replicas is 1"),
        ("--max-replicas -3", "max_replicas is -3"),
        ("--max-replicas 4 --min-replicas 5", "min_replicas is 5"),
        ("--max-replicas 4 --start-s -5", "start_s is -5"),
        ("--max-replicas 4 --start-s 90,60", "the shortest start before the longest"),
        ("--max-replicas 4 --start-s tepid", "--start-s is 'tepid'; it must be woken, warm, cold"),
        ("--max-replicas 4 --drain-s -1", "drain_s is -1"),
        ("--max-replicas 4 --failing 2", "failing_share is 2"),
        ("--max-replicas 4 --rules keda_waitin", "--rules has 'keda_waitin'"),
        ("--max-replicas 4 --rules slo_law,slo_law", "name each rule once"),
        ("--max-replicas 4 --attainment 2", "attainment is 2"),
        ("--max-replicas 4 --seed -1", "seed is -1"),
        ("--max-replicas 4 --start-s 1000", "of 1000 s start-up are tuned and judged on 10000 s"),
    ],
)
def test_impossible_fleets_are_refused_in_a_sentence(
    options: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one sentence, no folder."""
    trace, out = write_trace(tmp_path / "trace.csv", ((1, 700),)), tmp_path / "out"
    words = f"autoscale --trace {trace} --out {out} --table {TABLE} --ttft 2 --tpot 0.06 {options}"
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()


def test_a_histogram_tells_latencies_no_better_than_its_buckets() -> None:
    """All of 24 ms in a bucket from 20 to 40 ms: the 90th percentile reads 38 ms; beyond the last
    bound it is that bound."""
    buckets = (0.01, 0.02, 0.04, 0.06)
    above = np.array([1.0, 1.0, 0.0, 0.0], np.float32)
    assert float(histogram_quantile(buckets, above)) == pytest.approx(0.038)
    assert float(histogram_quantile(buckets, np.ones(4, np.float32))) == pytest.approx(0.06)
