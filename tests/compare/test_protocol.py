"""A comparison from end to end at a tiny budget: everybody plays, and nothing is done twice."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from jaxserve.agents import panel
from jaxserve.compare import protocol
from jaxserve.compare.pictures import write_task_pictures
from jaxserve.compare.protocol import Case, compare_task, prepare
from jaxserve.compare.reference import reference_objectives
from jaxserve.compare.result_tables import markdown
from jaxserve.errors import InputError
from jaxserve.tasks.spec import load_task
from tests.sizes import EPISODES

ARGUMENTS = dict(seeds=2, steps=800, episodes=EPISODES, hardware="a100-sxm-80gb", trace=None)
OWN = {"random", "default", "best_static", "heuristic", "planner", "regime_oracle", "ppo"}
ELSEWHERE = {"default", "best_static", "heuristic", "retuned_static", "ppo"}


def case(out: Path, **changes) -> Case:
    """A comparison that takes seconds."""
    return prepare(changes.pop("task", "static_workload"), out, **ARGUMENTS | changes)


@pytest.mark.slow
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
        assert play.objective.shape == play.slo_attainment.shape == shape
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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(task="nope"), "task is 'nope'"),
        (dict(seeds=0), "seeds is 0; it must be a whole number from 1 to 1024"),
        (dict(steps=0), "steps is 0"),
        (dict(episodes=0), "episodes is 0; it must be a whole number from 1 to 100000"),
        (dict(hardware="tpu"), "gpu is 'tpu'"),
        (dict(trace=Path("none.csv")), "none.csv cannot be read"),
    ],
)
def test_mistakes_are_found_before_the_work(changes: dict, message: str, tmp_path: Path) -> None:
    """Nothing is written before all arguments are known to be good."""
    with pytest.raises(InputError, match=message):
        case(tmp_path, **changes)
    assert not list(tmp_path.iterdir())


def test_a_task_without_anchors_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them there are no scores to compare."""
    monkeypatch.setattr("jaxserve.tasks.anchors.data_dir", lambda: tmp_path)
    with pytest.raises(InputError, match="task static_workload has no anchors"):
        case(tmp_path)


@pytest.mark.slow
def test_the_reference_simulator_in_real_processes() -> None:
    """Each policy's row is its own, in order, whichever process was first."""
    spec = load_task("static_workload")
    setup = panel.load_setup("static_workload")
    seen = []
    found = reference_objectives(
        spec,
        [panel.build_agent(name, setup) for name in ("noop", "best_static")],
        2,
        lambda done, total: seen.append((done, total)),
    )
    assert found.shape == (2, 2) and seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert (found[1] > found[0] + 0.3).all()
