"""Training runs behind a comparison: made, continued, found, and every seed's policy read back."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxserve.agents.task_setup import load_setup
from jaxserve.cli.agents import TrainOptions
from jaxserve.errors import InputError
from jaxserve.learning import training
from jaxserve.learning.run_options import check_run, describe
from jaxserve.learning.training import Interrupted, train
from jaxserve.studies.compare import trained as compare_trained
from jaxserve.studies.compare.trained import STEPS, learning_curve, plan_run, trained

SETUP = load_setup("static_workload")
UPDATE = 16 * 25
_ENVIRONMENTS = compare_trained.ENVIRONMENTS
CONFIG = check_run(3 * UPDATE, 0, 2, 16, 2e-3, 0.97)


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "VALIDATION_EPISODES", 2)
    monkeypatch.setattr(training, "_CHUNK_S", 0.0)
    monkeypatch.setattr("jaxserve.studies.compare.trained.ENVIRONMENTS", 16)


def test_runs_are_those_of_the_train_command() -> None:
    """Runs of ``compare`` have the defaults of ``train``."""
    options = {field.name: field for field in dataclasses.fields(TrainOptions)}
    assert options["steps"].default == STEPS
    assert options["learning_rate"].default == compare_trained.LEARNING_RATE
    assert options["environments"].default == _ENVIRONMENTS


@pytest.mark.slow
def test_every_seed_has_its_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped goes on at the next call; each policy is its own seed's; and the
    finished run is found again without training."""
    run = plan_run(tmp_path, SETUP, 2, 3 * UPDATE)
    assert not run.exists and (run.seeds, run.config) == ((0, 1), CONFIG)
    assert run.windows == 3 * UPDATE
    seen = []

    def stop(stage: str, done: int, total: int) -> None:
        seen.append((stage, done, total))
        if done:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        trained(SETUP, run, stop)
    assert seen[0] == ("static_workload, training 2 policies", 0, 1200)
    assert run.exists and not run.finished
    found = trained(SETUP, run)
    assert run.finished
    leaves = [jax.tree.leaves((policy.params, policy.normaliser)) for policy in found.policies]
    chosen = jax.tree.leaves((found.chosen.params, found.chosen.normaliser))
    same = [all(np.array_equal(a, b) for a, b in zip(own, chosen, strict=True)) for own in leaves]
    assert sorted(same) == [False, True]
    monkeypatch.setattr("jaxserve.studies.compare.trained.train", None)
    again = trained(SETUP, plan_run(tmp_path, SETUP, 2, None))
    assert again.digest == found.digest and len(again.policies) == 2


@pytest.mark.slow
def test_curves_have_a_row_for_each_seed(tmp_path: Path) -> None:
    """Rewards of every update by seed, against the windows played until then."""
    train(SETUP, CONFIG, (3, 4), tmp_path)
    run = plan_run(tmp_path, SETUP, 2, 3 * UPDATE)
    assert run.seeds == (3, 4)
    curve = learning_curve(run)
    np.testing.assert_array_equal(curve.windows, [400, 800, 1200])
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    names = lines[0].split(",")
    first, second = (dict(zip(names, line.split(","), strict=True)) for line in lines[1:3])
    assert (first["seed"], second["seed"]) == ("3", "4")
    assert curve.reward.shape == (2, 3)
    assert list(curve.reward[:, 0]) == [float(first["reward"]), float(second["reward"])]


def test_runs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Other seeds, another length if one is asked for, and files that are not a run's."""
    about = describe(SETUP, CONFIG, (0, 1))
    (tmp_path / "run.json").write_text(json.dumps(about))
    with pytest.raises(InputError, match=r"seeds is 10, but the run in .* has 2"):
        plan_run(tmp_path, SETUP, 10, None)
    with pytest.raises(InputError, match=r"steps make 1600 windows a seed, but .* has 1200"):
        plan_run(tmp_path, SETUP, 2, 4 * UPDATE)
    assert plan_run(tmp_path, SETUP, 2, None).config == CONFIG
    with pytest.raises(InputError, match="seeds is 0; it must be a whole number from 1 to 1024"):
        plan_run(tmp_path, SETUP, 0, None)
    (tmp_path / "run.json").write_text(json.dumps(about | {"config": {"rate": 1}}))
    with pytest.raises(InputError, match="config is not that of this version's learner"):
        plan_run(tmp_path, SETUP, 1, None)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (dict(task="trace_replay"), "task"),
        (dict(task="static_workload", hardware="h100-sxm-80gb"), "hardware"),
    ],
)
def test_only_the_tasks_own_runs_are_taken(other: dict, named: str, tmp_path: Path) -> None:
    """A run of another task or GPU does not pass for the task's own, finished or not."""
    about = describe(load_setup(**other), CONFIG, (0, 1))
    (tmp_path / "run.json").write_text(json.dumps(about))
    for _ in range(2):
        with pytest.raises(InputError, match=f"^{named} is .*, but the run in .* was begun with"):
            plan_run(tmp_path, SETUP, 2, None)
        (tmp_path / "weights.json").write_text("{}")


@pytest.mark.slow
def test_a_run_without_its_last_checkpoint_is_refused(tmp_path: Path) -> None:
    """The weights of one seed do not stand for all."""
    train(SETUP, CONFIG, (0, 1), tmp_path)
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(InputError, match="has no checkpoint of update 3, where the run ended"):
        trained(SETUP, plan_run(tmp_path, SETUP, 2, None))
