"""The command that plays tasks and scores agents and models, and ``inference.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import inference
from server.local import LocalServer, free_port
from server.players import baseline_inference
from tests.server.players.stub_model import KEY, Model

_ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("OPENAI_API_KEY", "HF_TOKEN")
    environment = {name: text for name, text in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.slow
def test_the_command_plays_with_a_model(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, tokens and every exchange in one file, without the key."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("API_BASE_URL", model.url)
    output = tmp_path / "new" / "folder" / "scores.json"
    monkeypatch.delenv("OPENAI_API_KEY")
    options = ["--mode", "openai", "--model", "stub", "--output", str(output), "--api-key", KEY]
    assert baseline_inference.main([*options, "--task-id", "static_workload"]) == 0
    report = json.loads(output.read_text())
    assert report["baseline"]["static_workload"]["exchanges"] == 20
    assert (report["tokens"], len(report["trace"])) == (2000, 20)
    assert report["trace"][0]["task"] == "static_workload"
    assert KEY not in output.read_text()


@pytest.mark.parametrize("answer", [401, 404, "<html>busy</html>"])
def test_a_model_that_never_answered_has_no_score(
    model: Model,
    answer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the default knobs are worth is not the model's: a message, and exit code 1."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("API_BASE_URL", model.url)
    model.answers = [answer]
    output = tmp_path / "scores.json"
    tasks = ["--task", "static_workload", "--task", "bursty_workload"]
    options = ["--mode", "openai", "--model", "stub", "--output", str(output), *tasks]
    assert baseline_inference.main(options) == 1
    assert "no score for static_workload, bursty_workload" in capsys.readouterr().err
    report = json.loads(output.read_text())
    assert report["mean_score"] is None
    for result in report["baseline"].values():
        assert result["score"] is None
        assert result["note"].startswith("the model stub has never answered: ")
    assert len(model.asked) <= 6


def test_the_command_plays_the_same_over_http(server: LocalServer, tmp_path: Path) -> None:
    """In this process and on a server."""
    files = [tmp_path / "here.json", tmp_path / "there.json"]
    common = ["--agent", "default", "--task", "bursty_workload", "--output"]
    assert baseline_inference.main([*common, str(files[0])]) == 0
    options = ["--runtime", "http", "--base-url", server.url]
    assert baseline_inference.main([*common, str(files[1]), *options]) == 0
    here, there = (json.loads(file.read_text())["baseline"] for file in files)
    here, there = here["bursty_workload"], there["bursty_workload"]
    assert here["score"] == there["score"]


def test_a_server_that_is_not_there_is_a_note(tmp_path: Path) -> None:
    """Instead of a score, at once."""
    report = tmp_path / "scores.json"
    url = f"http://127.0.0.1:{free_port()}"
    options = ["--runtime", "http", "--base-url", url, "--output", str(report)]
    assert baseline_inference.main(["--task", "bursty_workload", *options]) == 1
    result = json.loads(report.read_text())["baseline"]["bursty_workload"]
    assert result["score"] is None
    assert result["note"].startswith(f"the server at {url} does not answer")


def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and a sentence."""
    for name in ("OPENAI_API_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    for arguments, named in (
        (["--mode", "openai"], "no key for a language model"),
        (["--agent", "wizard"], "agent is 'wizard'"),
        (["--output", str(tmp_path / "file" / "x.json")], "--output"),
    ):
        assert baseline_inference.main(arguments) == 2
        assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"LLMSERVE_MODE": "real"}, "JAXSERVE_MODE (or LLMSERVE_MODE) asks for a real engine"),
        ({"JAXSERVE_MODE": "live"}, "JAXSERVE_MODE (or LLMSERVE_MODE) asks for a real engine"),
        ({"LLMSERVE_SEED": "7"}, "LLMSERVE_SEED is set, which has no effect here"),
    ],
)
def test_variables_without_effect_are_refused(
    variables: dict[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is played; a server may be live, which it says itself."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    for main in (lambda: baseline_inference.main([]), inference.main):
        assert main() == 2
        assert named in capsys.readouterr().err
    url = f"http://127.0.0.1:{free_port()}"
    options = ["--runtime", "http", "--base-url", url, "--task", "static_workload"]
    assert baseline_inference.main(options) == (2 if "LLMSERVE_SEED" in variables else 1)


def test_variables_of_something_else_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address is of no use to what plays in its own process, and of use over HTTP."""
    monkeypatch.setenv("LLMSERVE_MODE", "sim")
    monkeypatch.setenv("LLMSERVE_REAL_MODEL", "m")
    monkeypatch.setenv("LLMSERVE_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(inference, "TASKS", ())
    assert inference.main() == 0
    both = "LLMSERVE_BASE_URL, LLMSERVE_REAL_MODEL are set and have no effect on inference.py"
    assert f"warning: {both}\n" in capsys.readouterr().err
    assert baseline_inference.main(["--agent", "wizard"]) == 2
    said = capsys.readouterr().err
    assert "LLMSERVE_REAL_MODEL are set and have no effect with --runtime in-process\n" in said
    assert baseline_inference.main(["--runtime", "http", "--task", "static_workload"]) == 1
    said = capsys.readouterr().err
    assert "LLMSERVE_MODE, LLMSERVE_REAL_MODEL are set and have no effect with --runtime" in said
    assert "LLMSERVE_BASE_URL" not in said


@pytest.mark.slow
def test_inference_prints_a_line_a_step(model: Model) -> None:
    """[START], [STEP], [END] for each task, scores strictly inside (0, 1)."""
    done = run("inference.py", OPENAI_API_KEY=KEY, API_BASE_URL=model.url, MODEL_NAME="stub")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "[START] task=static_workload env=jaxserve model=stub"
    assert len(lines) == 3 * 202
    assert lines[1].startswith("[STEP] step=1 action=batch_cap=96,kv_budget_fraction=1,")
    assert lines[1].endswith("done=false error=null")
    ends = [line for line in lines if line.startswith("[END]")]
    for line in ends:
        fields = dict(part.split("=", 1) for part in line.split()[1:])
        assert 0.0 < float(fields["score"]) < 1.0
        assert (fields["success"], fields["steps"]) == ("true", "200")
        assert len(fields["rewards"].split(",")) == 200
    assert KEY not in done.stdout + done.stderr
    without = run("inference.py")
    assert (without.returncode, "OPENAI_API_KEY" in without.stderr) == (0, True)
    lines = without.stdout.splitlines()
    assert lines[0] == "[START] task=static_workload env=jaxserve model=heuristic"
    assert len(lines) == 3 * 202
    model.answers = [401]
    refused = run("inference.py", OPENAI_API_KEY=KEY, API_BASE_URL=model.url, MODEL_NAME="stub")
    assert (refused.returncode, "the key is refused" in refused.stderr) == (1, True)
    assert refused.stdout.count("[END] success=false steps=0 score=0.001") == 3


@pytest.mark.slow
def test_the_earlier_name_of_the_command_works() -> None:
    """``python -m server.baseline_inference`` takes the same options."""
    earlier, own = (
        run("-m", f"server.{name}baseline_inference", "--help") for name in ("", "players.")
    )
    assert earlier.returncode == own.returncode == 0
    assert "--base-url" in earlier.stdout
    assert earlier.stdout == own.stdout
