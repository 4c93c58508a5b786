"""Whole comparisons at a tiny budget: everybody plays, and nothing is done twice. They stand
together because they share what they compile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.studies.compare import protocol
from jaxserve.studies.compare.pictures import write_task_pictures
from jaxserve.studies.compare.protocol import compare_task
from jaxserve.studies.compare.result_tables import markdown
from tests.sizes import EPISODES
from tests.studies.compare.test_protocol import case

OWN = {"random", "default", "best_static", "heuristic", "planner", "regime_oracle", "ppo"}
ELSEWHERE = {"default", "best_static", "heuristic", "retuned_static", "ppo"}


@pytest.mark.deep
def test_a_run_is_taken_over_and_results_are_kept(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tables, JSON and pictures of a run that the train command made; the second call repeats
    them without playing."""

    def tiny_command(*arguments: str) -> str:
        assert cli.main(arguments) == 0
        return capsys.readouterr().out

    out, report, data = tmp_path / "out", tmp_path / "results.md", tmp_path / "results.json"
    run = str(out / "static_workload" / "ppo")
    training = ("train", "--task", "static_workload", "--seeds", "2", "--out", run)
    tiny_command(*training, "--environments", "16", "--steps", "400")
    arguments = ["compare", "static_workload", "--out", str(out), "--seeds", "2"]
    arguments += ["--episodes", str(EPISODES), "--markdown", str(report), "--json", str(data)]
    printed = tiny_command(*arguments)
    for part in ("test episodes", "replayed there", "both simulators", "score (95 % interval)"):
        assert part in printed
    assert "earlier call" not in printed
    text = report.read_text()
    assert f"`jaxserve compare static_workload --seeds 2 --episodes {EPISODES}" in text
    assert str(tmp_path) not in text
    assert f"2 training seeds of PPO with 400 windows each; {EPISODES} test episodes" in text
    (task,) = json.loads(data.read_text())["tasks"]
    assert task["about"]["task"] == "static_workload"
    assert len(task["plays"]["ppo"]["objective"]) == 2
    assert len(task["plays"]["heuristic"]["objective"][0]) == EPISODES
    assert task["about"]["seeds"] == [0, 1] and task["about"]["windows"] == 400
    pictures = {"learning.png", "policy_map.png", "episode.png", "results.json", "ppo"}
    assert {path.name for path in (out / "static_workload").iterdir()} == pictures
    assert (out / "scores.png").read_bytes().startswith(b"\x89PNG")

    assert "static_workload: results of an earlier call" in tiny_command(*arguments)
    assert report.read_text() == text


@pytest.mark.deep
def test_from_end_to_end(tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains, plays, writes; the second call trains and plays nothing; pictures and tables."""
    stages = {}
    result, policies, again = compare_task(
        case(tmp_path), lambda stage, done, total: stages.update({stage: (done, total)})
    )
    assert not again and len(policies.policies) == 2
    assert set(result.plays) == OWN
    for agent, play in result.plays.items():
        shape = (2 if agent == "ppo" else 1, EPISODES)
        assert play.objective.shape == play.good.shape == play.decided.shape == shape
        assert play.ttft_exceeded.shape[:2] == play.changes_per_minute.shape == shape
        assert np.isfinite(play.objective).all()
    by_name = {variant.name: variant for variant in result.variants}
    assert set(by_name["a100-sxm-80gb"].plays) == ELSEWHERE
    assert by_name["bursts x1.5"].reason == "its traffic has no bursts"
    told = np.arange(5 * EPISODES).reshape(5, EPISODES)  # by three agents and two seeds
    np.testing.assert_array_equal(result.reference["best_static"], told[1:2])
    np.testing.assert_array_equal(result.reference["ppo"], told[3:])
    assert stages["static_workload, training 2 policies"] == (800, 800)
    assert stages["static_workload"] == stages["static_workload, a100-sxm-80gb"] == (EPISODES,) * 2
    # The replayed setting is the same in both; another GPU makes its rewards other.
    own, there = (
        plays["best_static"].objective for plays in (result.plays, by_name["a100-sxm-80gb"].plays)
    )
    assert not np.allclose(own, there)

    monkeypatch.setattr(protocol, "evaluate", None)
    repeated, _, again = compare_task(case(tmp_path))
    assert again
    np.testing.assert_array_equal(repeated.plays["ppo"].objective, result.plays["ppo"].objective)
    assert markdown([repeated], "x") == markdown([result], "x")

    write_task_pictures(case(tmp_path), policies)
    for name in ("learning", "policy_map", "episode"):
        path = tmp_path / "static_workload" / f"{name}.png"
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.deep
def test_results_of_other_circumstances_are_not_reused(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another number of episodes, or other anchors, are played anew."""
    monkeypatch.setattr(protocol, "variants", lambda *_: ())
    compare_task(case(tmp_path))
    path = tmp_path / "static_workload" / "results.json"
    found = json.loads(path.read_text())
    for change in ({"episodes": 2}, {"anchors": found["about"]["anchors"] | {"oracle": 7.0}}):
        assert change.keys() <= found["about"].keys()
        path.write_text(json.dumps(found | {"about": found["about"] | change}))
        result, _, again = compare_task(case(tmp_path))
        assert not again and result.plays["ppo"].objective.shape == (2, EPISODES)
        assert json.loads(path.read_text())["about"] == found["about"]
    path.write_text("{")
    with pytest.raises(InputError, match=r"results.json is not readable JSON"):
        compare_task(case(tmp_path))
