"""slime gets the samples of a step from the service, in the words of each release."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from jaxserve.errors import InputError
from jaxserve.rollouts import slime
from jaxserve.rollouts.slime import (
    build_tasks,
    generate_rollout,
    leave_one_out,
    policy_version,
    prompt_text,
)
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.token_engine import TokenEngine, logprobs, prompt_of, sampled
from tests.rollouts.fake_slime import RELEASES, DataSource, install, sample_type
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

TWICE = SPEAK + SPEAK.replace('os.environ["INSTRUCTION"]', '"other"')
"""An agent that begins two conversations."""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningService]:
    """A service with its gateway and engine, and a token that it made."""
    monkeypatch.setattr(slime, "POLL_S", 0.02)
    with (
        TokenEngine("vllm") as engine,
        RunningGateway([engine.option], sessions=tmp_path / "r") as gateway,
        RunningService(gateway, tmp_path / "s", own_token=True) as running,
    ):
        yield running


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """Each of the two."""
    return request.param


def args_of(service: Any, agent: Any, **more: Any) -> SimpleNamespace:
    """slime's arguments."""
    given = {
        "hf_checkpoint": "c",
        "rollout_batch_size": 2,
        "reward_key": None,
        "jaxserve_service": getattr(service, "url", service),
        "jaxserve_task": {"agent": agent},
    }
    return SimpleNamespace(**given | more)


def test_a_rollout_of_both_releases(
    release: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples by group, session and trace; siblings have one id, under the release's own name."""
    sample = install(release, monkeypatch)
    source = DataSource(sample, ["one", [{"role": "user", "content": "two"}]], size=2)
    args = args_of(service, python(TWICE), reward_key="score")
    output = generate_rollout(args, 7, source)
    assert [[len(session) for session in group] for group in output.samples] == [[2, 2], [2, 2]]
    for group_index, (group, prompt) in enumerate(zip(output.samples, ("one", "two"), strict=True)):
        for place, session in enumerate(group):
            index = 2 * group_index + place
            assert {getattr(one, RELEASES[release]) for one in session} == {index}
            for one, said in zip(session, (prompt, "other"), strict=True):
                assert isinstance(one, sample) and one.status is sample.Status.COMPLETED
                ids = sampled({"role": "assistant", "content": "ok"})
                asked = prompt_of([{"role": "user", "content": said}])
                assert one.tokens == asked + ids and one.response_length == len(ids)
                assert one.loss_mask == [1] * len(ids)
                assert one.rollout_log_probs == pytest.approx(logprobs(ids))
                assert one.response == "".join(map(chr, ids))
                assert (one.group_index, one.index, one.label) == (group_index, index, "the label")
                assert one.reward == {"score": 1.0} and not one.remove_sample
    assert output.metrics == {
        "jaxserve/sessions": 4.0,
        "jaxserve/completed": 1.0,
        "jaxserve/without_a_trace": 0.0,
        "jaxserve/reward_of_completed": 1.0,
    }
    assert len(service.http.get("/tasks").json()["tasks"]) == 2


def test_how_old_the_weights_are(
    release: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step's number less that of the weights, where slime hands it to its loss; nothing is
    guessed while nobody has told the gateway which weights there are."""
    sample = install(release, monkeypatch)
    args = args_of(service, python(TWICE), rollout_batch_size=1)
    (node,) = service.http.get("/nodes").json()["nodes"]
    for version, number, staleness in ((None, None, None), ("step-5", 5, 2)):
        if version is not None:
            url = f"{node['control']}/control/weights"
            assert httpx.put(url, json={"version": version}).is_success
        output = generate_rollout(args, 7, DataSource(sample, ["a"], size=1))
        told = {"policy_version": number, "policy_staleness": staleness}
        for one in output.samples[0][0]:
            assert one.train_metadata == told and one.metadata.items() >= told.items()
            assert one.weight_versions == ([] if version is None else [version])
        assert output.metrics.get("jaxserve/policy_staleness") == staleness
    named = {"e": [{"instruction": "e", "agent": python(SPEAK)}]}
    args = args_of(service, None, jaxserve_eval_tasks=named)
    (one,) = generate_rollout(args, 7, None, evaluation=True).data["e"]["samples"]
    assert one.train_metadata is None and "policy_staleness" not in one.metadata


def test_the_oldest_weights_count() -> None:
    """The version is the lowest of a trace's completions; one unknown version makes it unknown."""
    assert policy_version(["step-12", "7", "step-9"]) == 7
    assert policy_version(["step-12", "7", None]) is None
    assert policy_version([]) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        *((name, 20) for name in ("20", "v20", "step-20", "step_20", "step20", "llama3/step-0020")),
        *((name, None) for name in ("", "default", "step-12b3", "1.5", "v1.2", "5-of-9-rc", "20 ")),
    ],
)
def test_the_number_of_weights(name: str, number: int | None) -> None:
    """The number is the last word of a version's name, alone or after letters only."""
    assert policy_version([name]) == number


@pytest.mark.parametrize(("step", "staleness"), [(5, 0), (7, 2), (4, None)])
def test_weights_of_a_later_step(step: int, staleness: int | None) -> None:
    """Are as old as nobody knows: their number is that of something else."""
    told = slime._policy({"weight_versions": ["step-5", "step-6"]}, step)
    assert told == {"policy_version": 5, "policy_staleness": staleness}


def test_it_is_called_as_slimes_own() -> None:
    """The parameters have slime's names and order."""
    parameters = inspect.signature(generate_rollout).parameters
    assert list(parameters) == ["args", "rollout_id", "data_source", "evaluation"]
    assert parameters["evaluation"].default is False


def test_a_session_without_a_trace_has_a_place(
    release: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slime counts rollouts; there is nothing to train on in it."""
    sample = install(release, monkeypatch)
    silent = {"command": [sys.executable, "-c", "exit(3)"]}
    args = args_of(service, silent, rollout_batch_size=1)
    output = generate_rollout(args, 0, DataSource(sample, ["a"], size=1))
    (((one,),),) = output.samples
    assert one.remove_sample and one.loss_mask == [0] and one.rollout_log_probs == [0.0]
    assert len(one.tokens) > one.response_length == 1
    assert one.status is sample.Status.FAILED and getattr(one, RELEASES[release]) == 0
    assert output.metrics["jaxserve/without_a_trace"] == 1.0
    assert "jaxserve/reward_of_completed" not in output.metrics


def test_a_session_without_a_grade_is_not_trained_on(
    release: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session becomes a sample in the form of a session without a trace."""
    sample = install(release, monkeypatch)
    evaluator = {"name": "tests.rollouts.evaluators.user_evaluators:Fails", "how": "refuses"}
    task = {"agent": python(SPEAK), "evaluator": evaluator}
    args = args_of(service, None, rollout_batch_size=1, jaxserve_task=task)
    output = generate_rollout(args, 0, DataSource(sample, ["a"], size=1))
    (((one,),),) = output.samples
    assert one.remove_sample and one.loss_mask == [0] and one.status is sample.Status.FAILED
    (named,) = service.http.get("/tasks").json()["tasks"]
    (told,) = service.result(named["task_id"])["sessions"]
    path = f"/sessions/{told['session_id']}/trajectory"
    assert service.http.get(path).json()["traces"][0]["reward"] is None


def test_what_completions_earned_reaches_slime(
    release: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards of completions are in each sample's metadata; the reward is the session's."""
    sample = install(release, monkeypatch)
    evaluator = {"name": "tests.rollouts.evaluators.user_evaluators:Worth", "worth": 0.5}
    evaluator["completions"] = [[2, 0, -3.0]]
    task = {"agent": python(TWICE), "evaluator": evaluator}
    args = args_of(service, None, rollout_batch_size=1, jaxserve_task=task)
    output = generate_rollout(args, 0, DataSource(sample, ["a"], size=1))
    (((first, second),),) = output.samples
    assert (first.reward, second.reward) == (0.5, 0.5)
    assert first.metadata["completions"] == [[1, 0, 0, 3]]
    assert first.metadata["completion_rewards"] == [0.0]
    assert second.metadata["completions"] == [[2, 0, 0, 3]]
    assert second.metadata["completion_rewards"] == [-3.0]


def test_an_evaluation(
    release: str, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks no source: its tasks stand in the file; a session is one sample, whatever it said."""
    install(release, monkeypatch)
    tasks = [{"instruction": "e", "agent": python(TWICE), "num_samples": 2}]
    silent = {"instruction": "e", "agent": {"command": [sys.executable, "-c", "exit(3)"]}}
    named = {"first": tasks, "second": [silent]}
    args = args_of(service, None, jaxserve_eval_tasks=named)
    data = generate_rollout(args, 0, None, evaluation=True).data
    assert data["first"]["rewards"] == [1.0, 1.0] and data["second"]["rewards"] == [0.0]
    for name, count in (("first", 2), ("second", 1)):
        assert len(data[name]["samples"]) == len(data[name]["truncated"]) == count
    assert max(map(sum, (one.loss_mask for one in data["first"]["samples"]))) == 3


def test_the_tasks_that_are_submitted() -> None:
    """Each group's task is the template with the prompt and the sample's own fields."""
    sample = sample_type("v0.3.1")
    (group,) = DataSource(sample, ["do it"], size=3).get_samples(1)
    group[0].metadata = {"jaxserve": {"environment": {"seed": 4}}, "other": 1}
    template = {"agent": {"preset": "pi"}, "environment": {"seed": 1}, "metadata": {"a": 1}}
    args = SimpleNamespace(jaxserve_task=template)
    (first,), (again,) = (build_tasks(args, 5, [group]) for _ in range(2))
    assert first.pop("task_id") != again["task_id"]
    assert first == {
        "agent": {"preset": "pi"},
        "environment": {"seed": 4},
        "instruction": "do it",
        "num_samples": 3,
        "metadata": {"a": 1, "rollout_id": 5, "group_index": 0},
    }


def test_a_prompt_of_messages() -> None:
    """Messages become one text; different roles are marked."""
    parts = [{"type": "text", "text": "Fix "}, {"type": "text", "text": "it"}]
    user = [{"role": "user", "content": parts}, {"role": "user", "content": "Then test it"}]
    assert prompt_text("as it is") == "as it is"
    assert prompt_text(user) == "Fix it\n\nThen test it"
    system = {"role": "system", "content": None}
    assert prompt_text([system, user[0]]) == "[system] \n\n[user] Fix it"


def graded(rollout: int, reward: float, **more: Any) -> Any:
    """A sample with a reward."""
    fields = {"loss_mask": [1], "status": "completed", "reward": {"score": reward}, **more}
    return sample_type("v0.3.0").from_dict({"group_index": 0, "group_id": rollout, **fields})


def test_rewards_of_a_group() -> None:
    """Less the mean of the other rollouts; who failed or has nothing to train on is no baseline."""
    args = SimpleNamespace(reward_key="score", rewards_normalization=True)

    def rewards(*samples: Any) -> list[float]:
        return leave_one_out(args, samples)[1]

    several = [graded(10, 2.0), graded(10, 4.0), graded(20, 10.0)]
    assert rewards(*several) == [-8.0, -6.0, 7.0]
    failed = graded(2, 10.0, status="failed")
    assert rewards(graded(1, 2.0), failed, graded(3, 6.0)) == [-4.0, 0.0, 4.0]
    assert rewards(graded(1, 2.0), graded(1, 4.0)) == [2.0, 4.0]
    for masked in ({"loss_mask": [0]}, {"remove_sample": True}):
        assert rewards(graded(1, 2.0, **masked), graded(2, 5.0)) == [0.0, 5.0]
    assert rewards(graded(1, 2.0), graded(2, 5.0, group_index=1)) == [2.0, 5.0]
    assert leave_one_out(args, several)[0] == [2.0, 4.0, 10.0]
    args.rewards_normalization = False
    assert leave_one_out(args, several) == ([2.0, 4.0, 10.0], [2.0, 4.0, 10.0])


def test_metrics_count_sessions() -> None:
    """Each once, and rewards of those that completed with something to train on."""
    whole: Any = SimpleNamespace(traces=[SimpleNamespace(metadata={"weight_versions": ["v3"]})])
    sessions = [
        slime._EndedSession("COMPLETED", 1.0, whole),
        slime._EndedSession("COMPLETED", 0.0, whole),
        slime._EndedSession("TIMEOUT", 0.25, whole),
        slime._EndedSession("COMPLETED", 0.0, None),
    ]
    assert slime.step_metrics([sessions], 4) == {
        "jaxserve/sessions": 4.0,
        "jaxserve/completed": 0.75,
        "jaxserve/without_a_trace": 1.0,
        "jaxserve/reward_of_completed": 0.5,
        "jaxserve/policy_staleness": 1.0,
    }


def test_what_is_refused(service: RunningService, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one sentence; tasks submitted before are cancelled."""
    sample = install("v0.3.1", monkeypatch)
    prompts = DataSource(sample, ["a", "b\0"], size=1)
    sleeping = {"command": [sys.executable, "-c", "import time; time.sleep(1000)"]}
    for changed, said in (
        ({"jaxserve_service": None}, "jaxserve_service is None; it must be an address"),
        ({"jaxserve_task": None}, "jaxserve_task is None; it must be a JSON object"),
        ({"jaxserve_task": {"agent": {}}}, "agent"),
        ({}, "the task: instruction is 'b\\x00'; it must be a text without NUL"),
    ):
        args = args_of(service, sleeping)
        vars(args).update(changed)
        with pytest.raises(InputError) as refused:
            generate_rollout(args, 0, prompts)
        assert said in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InputError, match="jaxserve_eval_tasks is None"):
        generate_rollout(args_of(service, sleeping), 0, prompts, evaluation=True)
    (task,) = service.http.get("/tasks").json()["tasks"]
    assert service.result(task["task_id"])["sessions"][0]["state"] == "ERROR"


def test_a_service_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is asked again for a while; then the error names it."""
    install("v0.3.1", monkeypatch)
    monkeypatch.setattr(slime, "POLL_S", 0.0)
    monkeypatch.setattr(slime, "_TRIES", 3)
    source = DataSource(sample_type("v0.3.1"), ["a"], size=1)
    args = args_of("http://127.0.0.1:1", {"preset": "pi"}, rollout_batch_size=1)
    with pytest.raises(InputError, match="which does not answer"):
        generate_rollout(args, 0, source)
