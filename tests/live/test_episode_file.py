"""The log: what was written is read again, whenever its writer was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import jaxserve
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.live.episode_file import EpisodeWriter, read_episode
from jaxserve.seeds import episode_key
from jaxserve.types import TimeStep
from tests.compiled_env import reset, step

HEADER = {"task": "mine", "agent": "ppo"}
NOTES: dict[str, Any] = {
    "window": 1,
    "seconds": 1.0,
    "reason": None,
    "expected": {twin: {"good": 3.0} for twin in ("in_force", "policy", "static")},
}


ACTION = jaxserve.make_action(batch_cap=16)
Steps = list[TimeStep]


@pytest.fixture(scope="module")
def steps(setup: TaskSetup) -> Steps:
    """Four windows of a simulated episode."""
    state, _ = reset(setup.env, episode_key(1))
    found = []
    for _ in range(4):
        state, timestep = step(setup.env, state, ACTION)
        found.append(timestep)
    return found


def write(path: Path, steps: Steps, header: Any = None) -> None:
    """A simulated episode as if it had been measured."""
    with EpisodeWriter(path, header or HEADER) as log:
        for number, timestep in enumerate(steps, start=1):
            notes = NOTES | {"window": number}
            log.window(timestep.observation, timestep.metrics, ACTION, notes)


def test_an_episode_is_replayed(setup: TaskSetup, steps: Steps, tmp_path: Path) -> None:
    """Figures, knobs and the reward, which is computed anew, as they were."""
    path = tmp_path / "log.jsonl"
    write(path, steps)
    episode = read_episode(path, setup.env)
    assert episode.header["agent"] == "ppo" and len(episode.notes) == 4
    assert path.stat().st_mode & 0o077 == 0
    for place, timestep in enumerate(steps):
        found = jax.tree.map(lambda leaf, at=place: leaf[0, at], episode.rollout.timesteps)
        np.testing.assert_allclose(found.reward, timestep.reward, rtol=1e-5, atol=1e-6)
        for name, leaf in vars(timestep.metrics).items():
            np.testing.assert_allclose(getattr(found.metrics, name), leaf, rtol=1e-6, err_msg=name)
        for name, leaf in vars(timestep.observation).items():
            np.testing.assert_allclose(getattr(found.observation, name), leaf, rtol=1e-6)
    assert set(np.asarray(episode.rollout.actions.batch_cap[0])) == {16}


def test_logs_without_overdue_requests(setup: TaskSetup, steps: Steps, tmp_path: Path) -> None:
    """Logs of earlier controllers, which did not count them, are read with none."""
    path = tmp_path / "log.jsonl"
    write(path, steps[:1])
    changed(path, 1, "metrics", "overdue")
    assert not read_episode(path, setup.env).rollout.timesteps.metrics.overdue.any()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kept=st.integers(0, 10_000), again=st.booleans())
def test_a_writer_that_was_killed(
    kept: int, again: bool, setup: TaskSetup, steps: Steps, tmp_path: Path
) -> None:
    """A torn line is left out, also where another controller went on after it."""
    path = tmp_path / "log.jsonl"
    path.unlink(missing_ok=True)
    write(path, steps[:2])
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    text = whole[: min(first + kept, len(whole))]
    path.write_bytes(text)
    windows = text.count(b"\n") - 1 + (not text.endswith(b"\n") and whole.startswith(text + b"\n"))
    if again:
        write(path, steps[:1])
        windows += 1
    if windows:
        assert len(read_episode(path, setup.env).notes) == windows
    else:
        with pytest.raises(InputError, match="has no window"):
            read_episode(path, setup.env)


def changed(path: Path, number: int, *keys: str, value: Any = ...) -> None:
    """Changes a field of a line, or takes it out."""
    lines = path.read_text().splitlines()
    entry = json.loads(lines[number])
    target = entry
    for key in keys[:-1]:
        target = target[key]
    if value is ...:
        del target[keys[-1]]
    else:
        target[keys[-1]] = value
    lines[number] = json.dumps(entry)
    path.write_text("\n".join(lines) + "\n")


WRONG = [
    (0, ("kind",), "x", "its first line is no header"),
    (0, ("spec_version",), 2, "spec_version is 2"),
    (1, ("metrics",), 3, "metrics is 3"),
    (1, ("metrics", "good"), ..., "good is missing"),
    (1, ("metrics", "good"), [1.0] * 9, "good is of another task"),
    (1, ("metrics", "itl_s"), float("nan"), "itl_s is missing or no finite number"),
    (1, ("metrics", "itl_s"), [], "itl_s is of another task"),
    (1, ("observation", "queue_depth"), "many", "queue_depth is missing or no finite"),
    (2, ("action", "batch_cap"), 0, "line 3: batch_cap is 0"),
    (2, ("action", "warp"), 1, "line 3: unknown knob 'warp'"),
    (2, ("seconds",), 0.0, "seconds is 0"),
    (2, ("expected", "policy"), ..., "policy is missing"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_logs_that_are_none(wrong: Any, setup: TaskSetup, steps: Steps, tmp_path: Path) -> None:
    """One sentence with the line."""
    number, keys, value, message = wrong
    path = tmp_path / "log.jsonl"
    write(path, steps[:2])
    changed(path, number, *keys, value=value)
    with pytest.raises(InputError) as refused:
        read_episode(path, setup.env)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_files_that_are_none(setup: TaskSetup, steps: Steps, tmp_path: Path) -> None:
    """Missing, binary, not JSON in its middle, of two tasks."""
    path = tmp_path / "log.jsonl"
    with pytest.raises(InputError, match="No such file"):
        read_episode(path, setup.env)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="it is no text"):
        read_episode(path, setup.env)
    path.write_text('{"kind": "header", "spec_version": 1}\n{x\n{"kind": "event"}\n')
    with pytest.raises(InputError, match="line 2 is no JSON"):
        read_episode(path, setup.env)
    path.unlink()
    write(path, steps[:1])
    write(path, steps[:1], {"task": "another"})
    with pytest.raises(InputError, match="another task goes on in the same log"):
        read_episode(path, setup.env)
    with pytest.raises(InputError, match=r"--log is .*: Is a directory"):
        EpisodeWriter(tmp_path, HEADER)
