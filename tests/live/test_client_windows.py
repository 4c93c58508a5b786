"""Windows that a client measures by itself are those that a gateway would measure."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.live.client_windows import ClientWindows, read_state
from jaxserve.live.engine_client import EngineClient, Target, TimedCompletion
from jaxserve.live.readings import counted
from jaxserve.sim.reference.request import Request
from jaxserve.tasks.spec import load_task
from tests.mock_engine.conftest import running
from tests.server.live.paid_engine import PaidEngine

SPEC = load_task("adversarial_multitenant")
CLASSES = sum(stream.bins for stream in SPEC.streams)
# What a request comes to: tokens before the window ends, and how it ends then.
FATES = st.tuples(
    st.integers(0, CLASSES - 1), st.integers(0, 4), st.sampled_from(["open", "done", "full"])
)


@given(st.lists(FATES, max_size=12))
def test_no_request_is_lost(fates: list[tuple[int, int, str]]) -> None:
    """Every arrival completed, was rejected, or is in flight; every event was timed."""
    windows = ClientWindows(SPEC)
    since_s = time.monotonic() - 1.0
    events = ends = 0
    for number, (group, tokens, fate) in enumerate(fates):
        now_s = time.monotonic()
        sending = windows.arrived(Request(number, 0.0, 10, 5, group), now_s)
        for _ in range(tokens):
            windows.output(sending, time.monotonic())
        events += tokens
        if fate == "done" and tokens:
            last_s = time.monotonic()
            windows.completed(sending, TimedCompletion(now_s, now_s, last_s, 10, tokens))
            ends += 1
        elif fate == "full":
            windows.rejected(sending, "429")
            ends += 1
    window = windows.window(since_s, time.monotonic())
    counts = window.classes.values()
    arrivals = sum(sum(each.arrivals) for each in counts)
    ended = sum(each.completed + each.rejected for each in counts)
    in_flight = sum(each.waiting + each.running for each in counts)
    assert (arrivals, ended, in_flight) == (len(fates), ends, len(fates) - ends)
    assert sum(each.first_tokens for each in counts) == sum(tokens > 0 for _, tokens, _ in fates)
    assert sum(each.good for each in counts) <= sum(each.completed for each in counts)
    assert window.complete and window.seconds >= 1.0


@pytest.mark.parametrize(("late_s", "good"), [(0.0, 1), (1e3, 0)])
def test_a_wait_at_the_client_is_part_of_the_ttft(late_s: float, good: int) -> None:
    """It counts from when the request was due."""
    windows = ClientWindows(SPEC)
    since_s = time.monotonic() - 1.0
    due_s = time.monotonic() - late_s
    sending = windows.arrived(Request(0, 0.0, 10, 1, 0), due_s)
    windows.output(sending, time.monotonic())
    windows.completed(sending, TimedCompletion(due_s, due_s, time.monotonic(), 10, 1))
    window = windows.window(since_s, time.monotonic())
    assert sum(each.good for each in window.classes.values()) == good
    assert window.ttft_p50_s == pytest.approx(late_s, abs=10.0)


def test_what_engines_say_of_themselves() -> None:
    """Counters where there are vLLM's metrics; nothing, and no error, where there are none."""

    async def read(url: str) -> object:
        async with EngineClient(Target(url)) as engine:
            before = await read_state(engine)
            await engine.complete([20] * 9, 3)
            return before, await read_state(engine)

    with running() as mock:
        before, after = asyncio.run(read(mock.url))  # type: ignore[misc]
    assert counted(before, after, "output_tokens") == 3
    with PaidEngine() as engine:
        assert asyncio.run(read(engine.url)) == (None, None)
