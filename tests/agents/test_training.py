"""Training runs: files, resuming bit by bit, interruption, divergence, bad settings."""

import csv
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxserve.agents import training
from jaxserve.agents.panel import load_setting
from jaxserve.agents.ppo import Learner, PPOConfig
from jaxserve.agents.training import check_run, train
from jaxserve.agents.weights import load_weights
from jaxserve.errors import InputError

SETTING = load_setting("static_workload")
CONFIG = PPOConfig(environments=16, rollout_windows=25, minibatches=2, updates=4)


@pytest.fixture(autouse=True)
def few_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "VALIDATION_EPISODES", 2)


def weights(directory: Path) -> dict[str, np.ndarray]:
    with np.load(directory / "weights.npz") as archive:
        return dict(archive)


def rows(directory: Path) -> list[dict[str, str]]:
    with open(directory / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after two of four updates and resumed: the same weights and metrics, bit by bit."""
    whole = train(SETTING, CONFIG, (0, 1), tmp_path / "whole")
    assert whole.seeds == (0, 1) and len(whole.objectives) == 2

    def stop(progress: training.Progress) -> None:
        if progress.windows >= 2 * 16 * 25:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "_CHUNK_S", 0.0)
    parts = tmp_path / "parts"
    with pytest.raises(training.Interrupted, match="after update 2 of 4"):
        train(SETTING, CONFIG, (0, 1), parts, watch=stop)
    assert not (parts / "weights.npz").exists() and len(rows(parts)) == 4
    train(SETTING, CONFIG, (0, 1), parts, resume=True)
    assert rows(parts) == rows(tmp_path / "whole")
    expected = weights(tmp_path / "whole")
    for name, array in weights(parts).items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    policy = load_weights(parts, SETTING.env)
    assert policy.network.sizes == Learner.create(SETTING.env, CONFIG).network.sizes


def test_divergence_keeps_the_last_good_state(tmp_path: Path) -> None:
    """An infinite learning rate ends in a sentence, with the metrics up to the last good update."""
    config = dataclasses.replace(CONFIG, learning_rate=float("inf"))
    with pytest.raises(InputError, match=r"of seed 0 is nan in update \d: training has diverged"):
        train(SETTING, config, (0,), tmp_path)
    assert (tmp_path / "metrics.csv").exists() and not (tmp_path / "weights.npz").exists()
    for row in rows(tmp_path):
        assert np.isfinite(float(row["value_loss"]))


def test_directories(tmp_path: Path) -> None:
    """A directory in use, nothing to resume, and other settings are all refused."""
    (tmp_path / "note").write_text("mine")
    with pytest.raises(InputError, match="is in use"):
        train(SETTING, CONFIG, (0,), tmp_path)
    with pytest.raises(InputError, match="no run to resume"):
        train(SETTING, CONFIG, (0,), tmp_path, resume=True)
    run = tmp_path / "run"
    run.mkdir()
    about = training._describe(SETTING, CONFIG, (0,)) | {"seeds": [7]}
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"seeds is \[0\], but the run in .* has \[7\]"):
        train(SETTING, CONFIG, (0,), run, resume=True)


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
    settings = dict(
        steps=100, seed=0, seeds=1, environments=16, learning_rate=1e-3, discount=0.97
    )
    with pytest.raises(InputError, match=message):
        check_run(**(settings | change))


def test_steps_are_rounded_up_to_rollouts() -> None:
    """One window more than a rollout of all environments is two updates."""
    assert check_run(16 * 25, 0, 1, 16, 1e-3, 0.97).updates == 1
    assert check_run(16 * 25 + 1, 0, 1, 16, 1e-3, 0.97).updates == 2


@pytest.mark.slow
def test_control_c_in_a_real_process(tmp_path: Path) -> None:
    """The command saves, says how to go on, exits with 130, and goes on."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "jaxserve.cli", "train", "--task", "static_workload"]
    command += ["--out", str(out), "--environments", "16", "--steps", "400000"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    for line in process.stderr:
        if "windows/s" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(60) == 130
    assert "continue with --resume" in rest and "Traceback" not in rest
    assert len(rows(out)) > 0
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert len(rows(out)) == 1000 and (out / "weights.npz").exists()


def test_seeds_differ() -> None:
    """Each seed has weights and traffic of its own."""
    learner = Learner.create(SETTING.env, CONFIG)
    one, other = (jax.jit(learner.init)(jax.random.key(seed)) for seed in (0, 1))
    assert not np.array_equal(
        jax.random.key_data(one.env_states.workload.key),
        jax.random.key_data(other.env_states.workload.key),
    )
