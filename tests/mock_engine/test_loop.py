"""The loop in virtual time, against the reference simulator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.engine_control.command import Command
from jaxserve.sim.machine.memory import BLOCK_TOKENS
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Knobs, ReferenceSettings, SchedulerSettings
from jaxserve.sim.reference.simulator import ReferenceSimulator
from tests.mock_engine.engine_in_virtual_time import Played, machine

TRAFFIC = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 300), st.integers(1, 150), st.integers(0, 2)),
    min_size=1,
    max_size=12,
)
DRAWN = ("id", "arrival_s", "prompt_tokens", "output_tokens", "priority", "acceptance")
POLICY = st.sampled_from(["fcfs", "priority"])


def requests_of(rows) -> list[Request]:
    return [Request(n, *row[:3], priority=row[3]) for n, row in enumerate(sorted(rows))]


@given(TRAFFIC, st.sampled_from([40, 80, 200]), st.integers(0, 3), POLICY)
def test_the_schedule_is_the_reference_simulators(rows, kv_blocks, depth, policy):
    """Every request has its first and last token at the very times of the simulator, with
    preemptions, drafts and priorities."""
    engine = machine(kv_blocks=kv_blocks, speculation_depth=depth, scheduling_policy=policy)
    # The simulator's router holds back requests beyond the batch cap, so that a preempted request
    # keeps its turn before more urgent ones; an engine without a router has no such line.
    most = engine.settings.batch_cap if policy == "priority" else len(rows)
    played = Played(engine, requests_of(rows[:most])).requests
    again = [Request(**{name: getattr(one, name) for name in DRAWN}) for one in played]
    knobs = Knobs(8, kv_blocks * BLOCK_TOKENS, depth, priority_routing=policy == "priority")
    deployment = ReferenceSettings(scheduler=SchedulerSettings(token_budget=128))
    ReferenceSimulator(deployment, engine.cost, knobs, again).advance(1000.0, knobs)
    for mine, other in zip(played, again, strict=True):
        assert mine.first_token_s == other.first_token_s
        assert mine.finish_s == other.finish_s
        assert mine.preemptions == other.preemptions


def test_every_token_is_handed_over_once():
    """In order, without a gap, also when several come in one step."""
    engine = machine(speculation_depth=3)
    played = Played(engine, [Request(n, 0.01 * n, 50, 40) for n in range(10)])
    for group in played.groups:
        assert group.finished
        upto = 0
        for span in group._new:
            assert span.start == upto < span.stop
            upto = span.stop
        assert upto == 40
    assert any(span.stop - span.start > 1 for group in played.groups for span in group._new)


@given(TRAFFIC, st.integers(0, 11), st.floats(0, 0.6))
def test_a_client_that_leaves_frees_its_place(rows, who, when_s):
    """Waiting, in the front end, running or done: all others are served, and no block is lost."""
    requests = requests_of(rows)
    gone = who % len(requests)
    leave_s = requests[gone].arrival_s + when_s
    left = [(leave_s, lambda played: played.loop.abandon(played.groups[gone]))]
    played = Played(machine(), requests, left)
    for number, group in enumerate(played.groups):
        assert group.finished or number == gone
    state = played.loop.state()
    assert (state["running"], state["waiting"], state["kv_blocks_used"]) == (0, 0, 0)
    text = played.loop.metrics.text().decode()
    aborted = not played.groups[gone].finished
    assert f'finished_reason="abort",model_name="llama-3.1-8b"}} {float(aborted)}' in text


def test_knobs_act_from_the_next_step():
    """And no longer when the lease is over."""
    crowd = [Request(n, 0.0, 100, 100) for n in range(24)]
    turned_s, lease_s = 0.3, 0.4
    command = Command(lease_s, {"batch_cap": 2, "token_budget": 40, "speculation_depth": 1})
    engine = machine(speculation_depth=2, kv_blocks=400)
    played = Played(engine, crowd, [(turned_s, lambda played: played.knobs.put(command))])
    log = played.loop.log.after(0)
    steps = [dict(zip(log["columns"], row, strict=True)) for row in log["rows"]]
    assert {step["depth"] for step in steps} == {1, 2}
    first, *_, last = (number for number, step in enumerate(steps) if step["depth"] == 1)
    before, under, later = steps[:first], steps[first : last + 1], steps[last + 1 :]
    assert {step["depth"] for step in under} == {1}
    assert sum(step["seconds"] for step in under) == pytest.approx(lease_s, abs=0.03)
    assert max(step["running"] for step in before) == 8
    assert max(step["prompt_tokens"] for step in under) <= 40
    assert min(step["running"] for step in under) <= 2 < max(step["running"] for step in later)


def test_a_smaller_kv_budget_preempts():
    """Down to what one sequence may need, and all are served in the end."""
    crowd = [Request(n, 0.0, 200, 100) for n in range(8)]
    least = machine().longest_blocks / 200
    command = Command(10.0, {"kv_budget_fraction": least})
    played = Played(machine(), crowd, [(0.2, lambda played: played.knobs.put(command))])
    assert all(group.finished for group in played.groups)
    state = played.loop.state()
    assert state["preemptions"] > 0
    assert state["kv_blocks_budget"] == 32


def test_priority_routing_is_turned():
    """The urgent overtake who waits, once the knob says so."""
    crowd = [Request(n, 0.001 * n, 100, 50, priority=n % 2) for n in range(30)]
    engine = machine(batch_cap=1, scheduling_policy="priority")
    off = Command(100.0, {"priority_routing": 0})
    by_arrival = Played(engine, crowd, [(0.0, lambda played: played.knobs.put(off))])
    order = sorted(by_arrival.requests, key=lambda request: request.first_token_s)
    assert [r.arrival_s for r in order] == sorted(r.arrival_s for r in order)
    by_priority = sorted(Played(engine, crowd).requests, key=lambda r: r.first_token_s)
    # The first one was served before the others had come.
    assert [request.priority for request in by_priority[1:]] == sorted(
        request.priority for request in by_priority[1:]
    )


def test_what_the_host_takes_is_part_of_the_front_end() -> None:
    """Requests enter earlier by as much as first tokens lately left late, and never before they
    came; figures of the engine are as if nothing had been late."""
    engine = machine()
    entries, delays = [], []
    for late_s in (0.0, 0.04, 1000.0):

        def delivered(played: Played, late_s: float = late_s) -> None:
            request = SimpleNamespace(first_token_s=4.0 - late_s)
            left: Any = SimpleNamespace(request=request)
            played.loop.delivered(left)

        requests = [Request(0, 0.0, 20, 2), Request(1, 5.0, 20, 2)]
        played = Played(engine, requests, [(4.0, delivered)])
        entries.append(played.requests[1].arrival_s)
        delays.append(played.requests[1].frontend_s)
    assert delays[0] == delays[1] == delays[2]
    assert entries[0] - entries[1] == pytest.approx(0.004)  # a tenth: it is a mean
    assert entries[0] - entries[2] == pytest.approx(engine.front_end.fixed_s)
    assert min(entries) >= 5.0
