"""The study from its first process to its tables, on the mock engine."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from jaxserve import cli
from jaxserve.agents.network import NetworkPolicy, Normaliser, network_for
from jaxserve.agents.task_setup import load_setup
from jaxserve.agents.weights import save_weights
from jaxserve.registry import make
from jaxserve.studies.live.episode import MeasuredEpisode, sent_requests
from jaxserve.studies.live.plan import AGENTS, study_path
from jaxserve.tasks.spec import load_task, parse_task

WINDOWS = 4
DILATION = 4


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study of one episode of four seconds; search and training were done by an earlier call."""
    data = json.loads(study_path().read_text())
    server = data["servers"]["h100"]
    server["time_dilation"] = DILATION
    del server["settings"]
    data |= {"repeats": 1, "servers": {"h100": server}}
    task = json.loads(study_path().with_name("live_h100.json").read_text())
    (tmp_path / "live_h100.json").write_text(json.dumps(task | {"horizon": WINDOWS}))
    (tmp_path / "study.json").write_text(json.dumps(data))
    folder = tmp_path / "out" / "h100"
    (folder / "ppo").mkdir(parents=True)
    (folder / "best_static.json").write_text(json.dumps({"batch_cap": 24}))
    spec = parse_task(task, "task")
    env = make(spec)
    network = network_for(env)
    params = network.initial_params(jax.random.key(0))
    save_weights(folder / "ppo", NetworkPolicy(params, Normaliser.create(), network), spec, {})
    return tmp_path


@pytest.mark.slow
def test_a_study_of_the_mock_engine(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All agents face the requests of the test episode; a second call plays nothing again."""
    command = [
        "live-study",
        "--study",
        str(study / "study.json"),
        "--directory",
        str(study / "out"),
    ]
    assert cli.main([*command, "--json", str(study / "figures.json")]) == 0
    printed = capsys.readouterr().out
    assert "Goodput of PPO" in printed and "Engine: the mock engine" in printed
    folder = study / "out" / "h100"
    task = load_task(str(folder / "task.json"))
    window_s = json.loads((study / "live_h100.json").read_text())["window_s"]
    assert task.window_s == DILATION * window_s and task.knobs == ("batch_cap",)
    assert task.limits["batch_cap"] == (1, 96) and task.objective.memory_weight == 0
    setup = load_setup(str(folder / "task.json"), table=str(folder / "table.parquet"))
    requests = sent_requests(setup, 0)
    for agent in AGENTS:
        episode = MeasuredEpisode.from_json(folder / "episodes" / f"{agent}-0.json")
        assert [each.arrival_s for each in episode.outcomes] == [r.arrival_s for r in requests]
        assert not any(each.error for each in episode.outcomes)
        assert episode.windows == WINDOWS
        assert {each.output_tokens for each in episode.outcomes} == {
            request.output_tokens for request in requests
        }
    [result] = json.loads((study / "figures.json").read_text())
    assert [each["agent"] for each in result["agents"]] == list(AGENTS)
    times = {path: path.stat().st_mtime_ns for path in (folder / "episodes").iterdir()}
    assert cli.main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert cli.main([*command, "--repeats", "0"]) == 2
    assert "--repeats is 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--markdown", "x.md"], "--markdown is for results of a real engine"),
        (["--vllm", "nowhere"], "--vllm is nowhere, where there is no bin/vllm"),
        (["--server", "b200"], "--server is 'b200'; it must be one of"),
        (["--study", "none.json"], "study none.json does not exist"),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is started."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["live-study", "--directory", "out", *arguments]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
