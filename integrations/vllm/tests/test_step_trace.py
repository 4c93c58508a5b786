"""Steps of an engine are logged with their load and time."""

from types import SimpleNamespace
from typing import Any

from jaxserve_vllm.engine_control.step_log import StepLog
from jaxserve_vllm.step_trace import StepTrace


def decode(context: int) -> Any:
    """A step in which one request decodes."""
    return SimpleNamespace(
        num_scheduled_tokens={"a": 1},
        total_num_scheduled_tokens=1,
        scheduled_new_reqs=[],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["a"], num_computed_tokens=[context]),
        scheduled_spec_decode_tokens={},
        num_spec_tokens_to_schedule=0,
    )


def rows(log: StepLog, after: int = 0) -> list[dict[str, float]]:
    answer = log.after(after)
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def test_a_step_and_its_time() -> None:
    """Of steps that overlap each counts from the end of the one before."""
    now = 10.0
    trace = StepTrace(log := StepLog(), lambda: now)
    first, second, third = decode(5), decode(6), decode(7)
    trace.composed(first, running=1, waiting=3)
    now = 10.5
    trace.composed(second, running=1, waiting=2)
    now = 12.0
    trace.computed(first)
    now = 13.0
    trace.computed(second)
    now = 20.0
    trace.composed(third, running=1, waiting=0)
    now = 20.25
    trace.computed(third)
    assert [row["seconds"] for row in rows(log)] == [2.0, 1.0, 0.25]
    assert [row["waiting"] for row in rows(log)] == [3, 2, 0]
    assert [row["kv_tokens"] for row in rows(log)] == [6, 7, 8]
    assert [row["step"] for row in rows(log, after=1)] == [2, 3]


def test_what_vllm_does_between_two_steps_is_part_of_the_second() -> None:
    """Unless there was no request between them."""
    now = 10.0
    trace = StepTrace(log := StepLog(), lambda: now)
    for unfinished in (True, False, True):
        step = decode(5)
        trace.composed(step, running=1, waiting=0)
        now += 1.0
        trace.computed(step)
        trace.left(unfinished)
        now += 0.25
    assert [row["seconds"] for row in rows(log)] == [1.0, 1.25, 1.0]


def test_steps_without_work_are_left_out() -> None:
    """Steps without work only free finished requests."""
    trace = StepTrace(log := StepLog())
    empty = decode(5)
    empty.total_num_scheduled_tokens = 0
    trace.composed(empty, 0, 0)
    trace.computed(empty)
    assert rows(log) == []


def test_the_log_is_bounded() -> None:
    """Only the latest steps are kept, by their numbers."""
    trace = StepTrace(log := StepLog(kept=3))
    for context in range(5):
        step = decode(context)
        trace.composed(step, 1, 0)
        trace.computed(step)
    assert [row["step"] for row in rows(log)] == [3, 4, 5]
