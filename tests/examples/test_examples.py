"""Every example runs as a user would start it, and what it prints means something."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.players.stub_model import Model

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MAX_LINES = 80
_LIMIT_S = 900  # so that one that hangs fails


def run(folder: Path, name: str, *arguments: str, **variables: str) -> str:
    """What an example prints when it is started in an empty folder."""
    hidden = ("OPENAI_API_KEY", "HF_TOKEN")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env=environment | variables,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(pattern: str, printed: str) -> list[float]:
    """The first group of every match, as a number."""
    return [float(found) for found in re.findall(pattern, printed, re.MULTILINE)]


@pytest.mark.slow
def test_custom_task(tmp_path: Path) -> None:
    """Three agents on the task of the file; the defaults do better than random knobs."""
    printed = run(tmp_path, "custom_task")
    assert printed.startswith("Chat by day, summaries by night:")
    chance, default, _ = numbers(r"reward +(-?\d+\.\d+)", printed)
    assert 0.0 < chance < default < 1.5


@pytest.mark.slow
def test_custom_reward(tmp_path: Path) -> None:
    """Where late answers count, a larger batch is the best one, and no batch earns less."""
    printed = run(tmp_path, "custom_reward")
    own, lenient = numbers(r"best: (\d+)", printed)
    assert lenient > own
    rewards = numbers(r"mean reward +(-?\d+\.\d+)", printed)
    assert all(late >= strict for strict, late in zip(rewards[:5], rewards[5:], strict=True))


@pytest.mark.slow
def test_domain_randomisation(tmp_path: Path) -> None:
    """A row for each GPU; the compromise earns no more than the mean of the best ones."""
    printed = run(tmp_path, "domain_randomisation")
    *gpus, together = numbers(r"mean reward +(-?\d+\.\d+)$", printed)
    assert len(gpus) == 3 and len(set(gpus)) == 3
    assert together <= sum(gpus) / 3 + 0.001
    assert printed.splitlines()[-1].startswith("all ")


@pytest.mark.deep
def test_multi_device_training(tmp_path: Path) -> None:
    """The environments lie on two devices, half of them on each, and the policy gets better."""
    printed = run(tmp_path, "multi_device_training", JAX_NUM_CPU_DEVICES="2")
    assert numbers(r"cpu:\d: (\d+) environments", printed) == [64.0, 64.0]
    first, last = numbers(r"mean reward (-?\d+\.\d+)", printed)
    assert last > first + 0.05


@pytest.mark.slow
def test_replay_trace(tmp_path: Path) -> None:
    """The synthetic trace is written and replayed: more batch slots, more requests in time."""
    printed = run(tmp_path, "replay_trace")
    assert (tmp_path / "synthetic_trace.csv").is_file()
    met = numbers(r"SLO met +(\d+\.\d)%", printed)
    assert len(met) == 3 and met == sorted(met) and met[2] - met[0] > 50.0
    again = run(tmp_path, "replay_trace", "--trace", "synthetic_trace.csv")
    assert again == printed


@pytest.mark.slow
def test_llm_agent(tmp_path: Path) -> None:
    """The model's knobs are those that are played; without a key it says what to set."""
    model = Model()
    try:
        printed = run(
            tmp_path,
            "llm_agent",
            OPENAI_API_KEY="sk-of-the-test",
            API_BASE_URL=model.url,
            MODEL_NAME="stub",
        )
    finally:
        model.close()
    assert numbers(r"^window +(\d+): batch_cap 96,", printed) == [1 + 20 * i for i in range(10)]
    (score,) = numbers(r"^stub: score (\d\.\d+), mean reward -?\d", printed)
    assert 0.0 < score < 1.0
    assert len(model.asked) == 10
    with pytest.raises(AssertionError, match="llm_agent: no key for a language model"):
        run(tmp_path, "llm_agent")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short_and_described(path: Path) -> None:
    """Less than 80 lines; the docstring shows the command, and every example has a test."""
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < MAX_LINES
    assert "Prints" in text.split('"""')[1]
    assert f"python examples/{path.name}" in text.split('"""')[1]
    assert f"test_{path.stem}" in globals()
