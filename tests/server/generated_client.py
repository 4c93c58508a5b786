"""Plays an episode with the client that openapi-python-client generated, see
``test_generated_client.py``: run in that environment, beside the package ``generated``."""

from __future__ import annotations

import sys

from generated import Client, models
from generated.api.environment_control import (
    get_episode_log,
    get_state,
    post_reset,
    post_step,
    post_step_many,
)
from generated.api.environment_info import get_health, get_info, get_runtime, get_tasks
from generated.api.grading import post_grader


def main(url: str) -> None:
    """Ends with an exception where an answer is not what the client takes it for."""
    client = Client(base_url=url, raise_on_unexpected_status=True, timeout=600)
    assert get_health.sync(client=client).status == "healthy"
    tasks = {task.name: task for task in get_tasks.sync(client=client).tasks}
    assert get_info.sync(client=client).version == get_runtime.sync(client=client).version
    begin = models.ResetBody(task_id="static_workload", seed=7)
    last = post_reset.sync(client=client, body=begin)
    session_id = last.session_id
    action = models.ServeAction(batch_cap=64, quantization_tier=1)
    while not last.done:
        body = models.StepBody(action=action, session_id=session_id)
        last = post_step.sync(client=client, body=body)
    windows = tasks["static_workload"].max_steps
    assert last.info.step == windows and last.info.action.batch_cap == 64
    state = get_state.sync(client=client, session_id=session_id)
    assert state.done and state.step_count == windows
    log = get_episode_log.sync(client=client, session_id=session_id)
    assert len(log.episode_log) == windows + 1
    # The log is a body of the grader as it is.
    grade = post_grader.sync(client=client, body=models.GradeBody.from_dict(log.to_dict()))
    assert grade.verified and grade.steps == windows
    refused = post_step.sync(
        client=client, body=models.StepBody(action=action, session_id=session_id)
    )
    assert isinstance(refused, models.Problem) and "is over" in refused.error
    names = [post_reset.sync(client=client, body=begin).session_id for _ in range(2)]
    pairs = [models.Pair(session_id=name, action=action) for name in names]
    many = post_step_many.sync(client=client, body=models.StepManyBody(steps=pairs))
    assert many.session_id == names and many.step == [1, 1]


if __name__ == "__main__":
    main(sys.argv[1])
