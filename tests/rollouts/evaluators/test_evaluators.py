"""Evaluators by their names, and what the grade of an environment's episode rests on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jaxserve.checks import JsonObject
from jaxserve.client import ServeClient
from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.bounded_process import ProcessExit
from jaxserve.rollouts.builders import prefix_merging
from jaxserve.rollouts.evaluators import EnvironmentEpisode, EvaluationContext, parse_evaluator
from jaxserve.rollouts.evaluators.env_grade import EnvGrade
from server.local import LocalServer, free_port
from tests.rollouts.evaluators.test_credit import call, record

OWN = "tests.rollouts.evaluators.user_evaluators"
WINDOWS = 2


def parsed(name: str, **options: Any) -> Any:
    return parse_evaluator(JsonObject({"name": name, **options}, "evaluator"))


def context(folder: Path, episode: EnvironmentEpisode | None) -> EvaluationContext:
    def execute(*_: Any) -> Any:
        raise AssertionError("nothing is run")

    return EvaluationContext(
        "t.0", "do it", folder, folder, folder, folder, execute, episode=episode
    )


def test_a_class_of_ones_own_is_made_of_the_other_fields() -> None:
    """Errors of the class name the field."""
    assert callable(parsed(f"{OWN}:Worth", worth=0.5).evaluate)
    with pytest.raises(InputError, match="evaluator: worth is 2; it must be a number"):
        parsed(f"{OWN}:Worth", worth=2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "name is 'nothing'; it must be one of session_completed, .*, or module:Class"),
        (f"{OWN}:Nobody", "it must be one of"),
        ("no.such.module:Class", "it must be one of"),
        (".own:Worth", "it must be one of"),
        (f"{OWN}:NoEvaluator", "it must be a class with the method evaluate"),
        (f"{OWN}:Broken", "it cannot be made: no weights"),
    ],
)
def test_names_that_lead_nowhere(name: str, message: str) -> None:
    """Are refused when the task comes, in one sentence."""
    with pytest.raises(InputError, match=message):
        parsed(name)


@pytest.mark.parametrize("expected", [[], ["a"]])
def test_a_suite_that_dies_is_worth_nothing(expected: list[str], tmp_path: Path) -> None:
    """Whatever had passed by then, and was expected to."""
    folders = [tmp_path / name for name in ("work", "fresh", "scratch")]
    for folder in folders:
        folder.mkdir()
    work, fresh, scratch = folders
    evaluator = parsed("test_on_output", command=["tests"], expected=expected)

    def worth(code: int) -> float:
        def execute(_: Sequence[str], printed: Path) -> ProcessExit:
            printed.write_text("PASSED a\n")
            return ProcessExit(code)

        given = EvaluationContext("t.0", "do it", work, work, scratch, fresh, execute)
        return evaluator.evaluate(prefix_merging([]), given).outcome_reward

    assert [worth(code) for code in (0, 1, -11)] == [1.0, 0.0, 0.0]


@pytest.fixture
def played(server: LocalServer) -> Iterator[tuple[ServeClient, EnvironmentEpisode]]:
    """An episode of some windows that was begun for a session."""
    with ServeClient(server.url) as client:
        client.reset(task_id="static_workload", seed=5)
        told = client.observe().info
        names = ("session_id", "episode_id", "episode_number", "task_id", "seed", "split")
        episode = EnvironmentEpisode(url=server.url, **{name: told[name] for name in names})
        for _ in range(WINDOWS):
            client.step({"batch_cap": 64})
        yield client, episode


def graded(
    folder: Path, episode: EnvironmentEpisode | None, records: Sequence[CompletionRecord] = ()
) -> Any:
    evaluator = EnvGrade(JsonObject({}, "evaluator"))
    given = replace(context(folder, episode), records=records)
    return evaluator.evaluate(prefix_merging(records), given)


def test_the_grade_is_the_servers(
    played: tuple[ServeClient, EnvironmentEpisode], tmp_path: Path
) -> None:
    """The grade is that of the begun episode; windows without a completion are counted."""
    client, episode = played
    found = graded(tmp_path, episode)
    said, grade = found.metadata, client.grade()
    assert (found.outcome_reward, said["breakdown"]) == (grade["score"], grade["breakdown"])
    assert said["verified"] and grade["breakdown"]["throughput"] > 0
    assert (said["windows"], said["windows_without_completion"]) == (WINDOWS, WINDOWS)


def test_windows_are_completions_and_traces_have_the_score(
    played: tuple[ServeClient, EnvironmentEpisode], tmp_path: Path
) -> None:
    """Two scales that are not mixed: a trace that made no window is worth what the others are."""
    client, episode = played
    rewards = [one["reward"] for one in client.episode_log()["episode_log"] if "action" in one]
    title = record(1, [], {})
    playing = [record(seq, [call(f"c{seq}", 64)], {}) for seq in (2, 3)]
    found = graded(tmp_path, episode, [title, *playing])
    assert found.trace_rewards is None and found.outcome_reward == client.grade()["score"]
    assert found.completion_rewards == {(2, 0): rewards[0], (3, 0): rewards[1]}


def other_seed(client: ServeClient) -> None:
    client.reset(task_id="static_workload", seed=6)


def other_task(client: ServeClient) -> None:
    client.reset(task_id="bursty_workload", seed=5)


@pytest.mark.parametrize("begin", [other_seed, other_task])
def test_an_episode_of_the_agents_choice_is_worth_nothing(
    begin: Callable[[ServeClient], None],
    played: tuple[ServeClient, EnvironmentEpisode],
    tmp_path: Path,
) -> None:
    """However well it was played, and the same one begun anew neither."""
    client, episode = played
    begin(client)
    client.step({"batch_cap": 64})
    found = graded(tmp_path, episode)
    assert found.outcome_reward == 0.0
    assert "the episode that was begun has" in found.metadata["reason"]
    client.reset(task_id=episode.task_id, seed=episode.seed)
    assert graded(tmp_path, episode).metadata["reason"].startswith("episode_id is")


def test_a_second_try_is_worth_nothing(
    played: tuple[ServeClient, EnvironmentEpisode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the first one's name neither, also where it is begun while the first is graded."""
    client, episode = played

    def again() -> None:
        client.reset(task_id=episode.task_id, seed=episode.seed, episode_id=episode.episode_id)
        client.step({"batch_cap": 64})

    read = ServeClient.episode_log
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(ServeClient, "episode_log", lambda self: (read(self), again())[0])
        tries = [graded(tmp_path, episode)]
    tries.append(graded(tmp_path, episode))
    for found in tries:
        assert found.outcome_reward == 0.0
        assert found.metadata["reason"].startswith("episode_number is")


def test_an_episode_that_the_server_plays_is_worth_nothing(
    played: tuple[ServeClient, EnvironmentEpisode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few of its windows: an agent may not have one of the server's own do its work."""
    client, episode = played
    real = ServeClient.grade
    monkeypatch.setattr(ServeClient, "grade", lambda self: real(self) | {"score": 0.9})
    assert graded(tmp_path, episode).outcome_reward == 0.9
    client.drive("default", 2)
    client.step({"batch_cap": 64})
    found = graded(tmp_path, episode)
    assert (found.outcome_reward, found.completion_rewards) == (0.0, {})
    assert (found.metadata["score"], found.metadata["windows_driven"]) == (0.9, 2)
    assert found.metadata["reason"] == "an agent of the server's own played 2 of its windows"


def test_a_grade_that_is_not_verified_is_worth_nothing(
    played: tuple[ServeClient, EnvironmentEpisode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever score stands beside it."""
    _, episode = played
    real, forged = ServeClient.grade, {"score": 0.9, "verified": False}
    monkeypatch.setattr(ServeClient, "grade", lambda self: real(self) | forged)
    found = graded(tmp_path, episode)
    assert (found.outcome_reward, found.metadata["score"]) == (0.0, 0.9)
    assert found.metadata["reason"] == "the episode is not verified"


def test_without_an_episode_or_a_server_there_is_no_grade(
    played: tuple[ServeClient, EnvironmentEpisode], tmp_path: Path
) -> None:
    """The session ends with the reason."""
    _, episode = played
    with pytest.raises(InputError, match="the task must have an environment"):
        graded(tmp_path, None)
    gone = replace(episode, url=f"http://127.0.0.1:{free_port()}")
    evaluator = EnvGrade(JsonObject({}, "evaluator"))
    with pytest.raises(InputError, match="gives no grade"):
        evaluator.evaluate(prefix_merging([]), replace(context(tmp_path, gone), budget_s=0.1))
