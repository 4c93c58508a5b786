"""Training runs: files, resuming bit by bit, interruption, divergence, bad options."""

import csv
import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.agents.task_setup import load_setup
from jaxserve.agents.trained_on import facts
from jaxserve.agents.weights import load_weights
from jaxserve.errors import InputError
from jaxserve.learning import training
from jaxserve.learning.ppo import Learner, TrainState, UpdateReport
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.run_options import describe
from jaxserve.learning.training import train
from jaxserve.runtime.child_processes import own_process
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import write_table_file
from tests.quick_compiler import commands_compute

SETUP = load_setup("static_workload")
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


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of four updates of seeds 0 and 1."""
    directory = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "VALIDATION_EPISODES", 2)
        result = train(SETUP, CONFIG, (0, 1), directory)
    assert result.seeds == (0, 1) and len(result.objectives) == 2
    made = json.loads((directory / "weights.json").read_text())["provenance"]
    assert made["inputs"] == dict(SETUP.inputs) and made["seed"] == result.seeds[result.best]
    assert made["trained_on"] == facts(SETUP)
    return directory


def resumed_is_whole(directory: Path, whole: Path, tolerance: float = 0.0) -> None:
    """Resumes a run and compares its weights and metrics with the uninterrupted one's.

    Args:
      tolerance: for a run that began with another compiled program.
    """
    assert not (directory / "weights.npz").exists() and len(rows(directory)) == 4
    train(SETUP, CONFIG, (0, 1), directory, resume=True)
    for mine, others in zip(rows(directory), rows(whole), strict=True):
        for name, value in mine.items():
            close = pytest.approx(float(others[name]), rel=tolerance, abs=tolerance)
            assert float(value) == close, name
    expected = weights(whole)
    for name, array in weights(directory).items():
        np.testing.assert_allclose(
            array, expected[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after two of four updates, then resumed: the same weights and metrics, bit by bit."""

    def stop(progress: training.TrainingStatus) -> None:
        if progress.windows == 2 * CONFIG.windows:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(training, "_CHUNK_S", 0.0)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(training.Interrupted, match="after update 2 of 4"):
        train(SETUP, CONFIG, (0, 1), tmp_path, tensorboard=True, watch=stop)
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(list(tmp_path.glob("tensorboard/seed_*/events*"))) == 2
    resumed_is_whole(tmp_path, whole)
    policy = load_weights(tmp_path, SETUP.env, SETUP.spec.name)
    assert policy.network.sizes == Learner.create(SETUP.env, CONFIG).network.sizes


@pytest.mark.slow
def test_divergence_keeps_the_last_good_state(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that is no number ends the run with a sentence; the updates before it are saved, and a
    run that goes on from them is the one without the accident."""
    update = Learner.update

    def accident(learner: Learner, state: TrainState) -> tuple[TrainState, UpdateReport]:
        after, report = update(learner, state)
        broken = jnp.where(state.update == 2, jnp.nan, 0.0)
        after = dataclasses.replace(
            after, params=jax.tree.map(lambda leaf: leaf + broken, after.params)
        )
        return after, dataclasses.replace(report, value_loss=report.value_loss + broken)

    monkeypatch.setattr(training, "_CHUNK_S", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", accident)
        message = "value_loss of seed 0 is nan in update 3: .* the last good state is update 2$"
        with pytest.raises(InputError, match=message):
            train(SETUP, CONFIG, (0, 1), tmp_path)
    resumed_is_whole(tmp_path, whole, tolerance=1e-3)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named(tmp_path: Path, whole: Path) -> None:
    """A run whose checkpoint cannot be read is refused with a sentence, and left as it is."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    files = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:100])
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with pytest.raises(InputError, match=r"the checkpoint of update 4 in .* cannot be read"):
        train(SETUP, CONFIG, (0, 1), run, resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}


def test_directories(tmp_path: Path) -> None:
    """A directory in use, nothing to resume, and other seeds are all refused."""
    (tmp_path / "note").write_text("mine")
    with pytest.raises(InputError, match="is in use"):
        train(SETUP, CONFIG, (0,), tmp_path)
    with pytest.raises(InputError, match="no run to resume"):
        train(SETUP, CONFIG, (0,), tmp_path, resume=True)
    run = tmp_path / "run"
    run.mkdir()
    about = describe(SETUP, CONFIG, (0,)) | {"seeds": [7]}
    (run / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"seeds is \[0\], but the run in .* with \[7\]"):
        train(SETUP, CONFIG, (0,), run, resume=True)


@pytest.mark.slow
def test_a_run_goes_on_with_what_it_was_begun_with(tmp_path: Path, whole: Path) -> None:
    """Another GPU, table, trace, size or discount is refused by name, and the run is left as it
    is; so is a run that does not say what it was begun with."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    table = tmp_path / "table.parquet"
    write_table_file(table, build("a100-sxm-40gb", "llama-3.1-8b", token_budget=512))
    load = partial(load_setup, "static_workload")
    for setup, config, named in (
        (load(hardware="h100-sxm-80gb"), CONFIG, "hardware is h100-sxm-80gb [0-9a-f]{16}"),
        (load(table=str(table)), CONFIG, "table is [0-9a-f]{16}"),
        (load(trace="synthetic_conversation.csv"), CONFIG, "trace is [0-9a-f]{16}"),
        (SETUP, dataclasses.replace(CONFIG, environments=32), "environments is 32"),
        (SETUP, dataclasses.replace(CONFIG, discount=0.9), r"discount is 0\.9"),
    ):
        with pytest.raises(InputError, match=f"^{named}, but the run in .* was begun with"):
            train(setup, config, (0, 1), run, resume=True)
    assert before == {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    begun = json.loads((run / "run.json").read_text())
    del begun["hardware"]
    (run / "run.json").write_text(json.dumps(begun))
    with pytest.raises(InputError, match=r"the run in .* does not say its hardware"):
        train(SETUP, CONFIG, (0, 1), run, resume=True)


@pytest.mark.slow
@commands_compute()
def test_control_c_in_a_real_process(tmp_path: Path) -> None:
    """The command saves, says how to go on, exits with 130, and goes on."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "jaxserve.cli", "train", "--task", "static_workload"]
    # Long enough not to be over before the signal is seen, which is looked for every two seconds.
    command += ["--out", str(out), "--environments", "16", "--steps", "80000"]
    with own_process(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "windows/s" in line:
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(300.0) == 130
    assert "continue with --resume" in rest and "Traceback" not in rest
    assert len(rows(out)) > 0
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(rows(out)) == 200 and (out / "weights.npz").exists()


def test_seeds_differ() -> None:
    """Each seed has weights and traffic of its own."""
    init = jax.jit(Learner.create(SETUP.env, CONFIG).init)
    one, other = (init(jax.random.key(seed)) for seed in (0, 1))
    assert not np.array_equal(
        jax.random.key_data(one.env_states.workload.key),
        jax.random.key_data(other.env_states.workload.key),
    )
