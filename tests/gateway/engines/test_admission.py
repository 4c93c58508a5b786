"""Pools: order, caps, look-ahead, balance and what is left behind by those who leave."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.engines.admission import Pool, Replica, build_pools
from jaxserve.gateway.engines.specs import EngineSpec, parse_engines
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.stub_engine import StubEngine
from tests.patience import wait_until

pytestmark = pytest.mark.anyio


def make_pool(places: Sequence[int | None], capacity: int = 1000) -> Pool:
    """A pool of replicas with so many places each."""
    replicas = [
        Replica(EngineSpec("vllm", f"http://e{number}", f"vllm-{number}", "p"), most)
        for number, most in enumerate(places)
    ]
    return Pool("p", replicas, capacity)


async def settle() -> None:
    """Lets every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Visitor:
    """A request that wants a place."""

    def __init__(self, pool: Pool, priority: int) -> None:
        self.number = pool.number()
        self.priority = priority
        self.task = asyncio.create_task(pool.enter(priority, self.number))


@given(
    priorities=st.lists(st.integers(-3, 3), min_size=1, max_size=40),
    leavers=st.sets(st.integers(0, 39)),
    places=st.integers(1, 3),
)
async def test_order_is_priority_then_arrival(
    priorities: list[int], leavers: set[int], places: int
) -> None:
    """Whoever leaves the queue, the others come in the order of (priority, arrival), no place is
    lost and none is given twice."""
    pool = make_pool([places])
    (replica,) = pool.replicas
    inside = [await pool.enter(0, pool.number()) for _ in range(places)]
    visitors = [Visitor(pool, priority) for priority in priorities]
    await settle()
    for place in leavers & set(range(len(visitors))):
        visitors[place].task.cancel()
    await settle()
    staying = [one for place, one in enumerate(visitors) if place not in leavers]
    assert pool.waiting == len(staying)
    for expected in sorted(staying, key=lambda one: (one.priority, one.number)):
        pool.leave(inside.pop())
        await settle()
        assert expected.task.done() and replica.in_flight == places
        inside.append(expected.task.result())
    assert pool.waiting == 0
    for one in inside:
        pool.leave(one)
    assert replica.in_flight == 0


@given(
    places=st.lists(st.one_of(st.none(), st.integers(1, 4)), min_size=1, max_size=4),
    steps=st.lists(
        st.tuples(st.sampled_from(("enter", "leave", "cancel", "lose")), st.integers(0, 50)),
        max_size=80,
    ),
)
async def test_whatever_happens_places_are_kept(
    places: list[int | None], steps: list[tuple[str, int]]
) -> None:
    """No replica has more than its places, nobody waits while there is room, and at the end
    everything is free."""
    pool = make_pool(places)
    visitors: list[Visitor] = []

    def inside() -> list[Visitor]:
        return [one for one in visitors if one.task.done() and not one.task.cancelled()]

    for step, number in steps:
        if step == "enter":
            visitors.append(Visitor(pool, number % 3))
        elif step == "cancel" and visitors:
            visitors[number % len(visitors)].task.cancel()
        elif step == "leave" and inside():
            gone = inside()[number % len(inside())]
            visitors.remove(gone)
            pool.leave(gone.task.result())
        elif step == "lose":
            pool.replicas[number % len(places)].unreachable()
        if number % 3:  # otherwise the next step comes before anybody noticed
            await settle()
    await settle()
    assert sum(replica.in_flight for replica in pool.replicas) == len(inside())
    for replica, most in zip(pool.replicas, places, strict=True):
        assert most is None or replica.in_flight <= most
    if pool.waiting and not any(step == "lose" for step, _ in steps):
        assert not any(replica.has_place() for replica in pool.replicas)
    while gone := inside():
        for one in gone:
            visitors.remove(one)
            pool.leave(one.task.result())
        await settle()
    assert pool.waiting == 0
    assert all(replica.in_flight == 0 for replica in pool.replicas)


async def test_the_least_loaded_replica_is_next() -> None:
    """Load is spread evenly, and equals take turns."""
    pool = make_pool([None, None, None])
    names = [(await pool.enter(0, pool.number())).spec.name for _ in range(9)]
    assert names == ["vllm-0", "vllm-1", "vllm-2"] * 3
    pool.leave(pool.replicas[1])
    assert (await pool.enter(0, pool.number())).spec.name == "vllm-1"


async def test_one_that_cannot_be_reached_rests() -> None:
    """Others are asked first, and it is asked when there is no other."""
    pool = make_pool([None, 1])
    pool.replicas[0].unreachable()
    assert (await pool.enter(0, pool.number())) is pool.replicas[1]
    waiting = Visitor(pool, 0)
    await settle()
    assert not waiting.task.done()
    pool.leave(pool.replicas[1])
    await settle()
    assert waiting.task.result() is pool.replicas[1]
    pool.replicas[1].unreachable()
    assert (await pool.enter(0, pool.number())) is pool.replicas[0]


async def test_a_full_queue_turns_away() -> None:
    """But not those who had a place at an engine that did not begin."""
    pool = make_pool([1], capacity=1)
    first = await pool.enter(0, pool.number())
    early = pool.number()
    waiting = Visitor(pool, 0)
    await settle()
    with pytest.raises(RequestError) as refused:
        await pool.enter(-5, pool.number())
    assert refused.value.status == 429 and refused.value.retry_after_s == 1
    again = asyncio.create_task(pool.enter(0, early, again=True))
    await settle()
    pool.leave(first)
    await settle()
    assert again.done() and not waiting.task.done()
    waiting.task.cancel()


async def test_those_who_left_are_forgotten() -> None:
    """A queue that nothing leaves by the front does not grow with those who leave by the back."""
    pool = make_pool([1])
    await pool.enter(0, pool.number())
    for _ in range(500):
        visitor = Visitor(pool, 0)
        await settle()
        visitor.task.cancel()
        await settle()
    assert len(pool._heap) < 100


def test_pools_of_tiers_and_depths() -> None:
    """Engines of one tier and depth are one pool; a cap has the look-ahead added to it."""
    engines = ("vllm=http://a,tier=0,cap=8", "vllm=http://b,tier=1", "vllm=http://c,tier=0,cap=4")
    pools = build_pools(parse_engines(engines), 10, 2)
    assert list(pools) == ["tier0", "tier1"]
    assert [one.places for one in pools["tier0"].replicas] == [10, 6]
    assert [one.places for one in pools["tier1"].replicas] == [None]


class Crowd:
    """Requests in the queue of a real gateway whose one place is taken."""

    def __init__(self, engine: StubEngine, gateway: RunningGateway) -> None:
        self.engine = engine
        self.gateway = gateway
        self._pool = ThreadPoolExecutor(32)
        self._sent = 0
        self.answers: list[Future[httpx.Response]] = []

    def send(self, name: str, headers: dict[str, str] | None = None, **body: object) -> None:
        """One more, after all before are where they wait."""
        asked = {"name": name, "stub": {"gated": True}, **body}
        self.answers.append(self._pool.submit(self.gateway.post, asked, headers=headers or {}))
        self._sent += 1
        if self._sent == 1:
            self.engine.wait_for(1)
        else:
            self.gateway.wait_for_queue(self._sent - 1)

    def order(self) -> list[str]:
        """Lets all go; names in the order in which the engine saw them."""
        for place in range(self._sent):
            self.engine.wait_for(place + 1)
            self.engine.seen[place].allow()
        assert all(answer.result().status_code == 200 for answer in self.answers)
        return [seen.json["name"] for seen in self.engine.seen]


def test_priority_by_header_and_field(engine: StubEngine, start: Start) -> None:
    """Lower first, whether it stands in a header or in the body; then in order of arrival."""
    crowd = Crowd(engine, start([engine], ",cap=1", look_ahead=0))
    crowd.send("first")
    crowd.send("plain")
    crowd.send("late", priority=7)
    crowd.send("urgent", {"x-priority": "-2"})
    crowd.send("header wins", {"x-priority": "-1"}, priority=9)
    crowd.send("vllm's header", {"x-vllm-priority": "3"})
    crowd.send("plain too")
    order = ["first", "urgent", "header wins", "plain", "plain too", "vllm's header", "late"]
    assert crowd.order() == order
    assert "priority" not in engine.seen[0].json
    assert engine.most_running == 1


def test_the_cap_and_its_look_ahead(engine: StubEngine, start: Start) -> None:
    """Two wait inside the engine beside those that run; the others wait outside."""
    gateway = start([engine], ",cap=3")
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(gateway.post, {"stub": {"gated": True}}) for _ in range(12)]
        engine.wait_for(5)
        gateway.wait_for_queue(7)
        assert len(engine.seen) == 5
        for place in range(12):
            engine.wait_for(place + 1)
            engine.seen[place].allow()
        assert {answer.result().status_code for answer in answers} == {200}
    assert engine.most_running <= 5


def test_back_pressure(engine: StubEngine, start: Start) -> None:
    """A full queue is answered 429 with a time to wait, in the dialect's form, and at once."""
    gateway = start([engine], ",cap=1", look_ahead=0, queue=1)
    crowd = Crowd(engine, gateway)
    crowd.send("first")
    crowd.send("second")
    for path, kind in (("/v1/chat/completions", "queue_full"), ("/v1/messages", None)):
        answer = gateway.post(path=path)
        assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert error["type"] == "rate_limit_error"
        assert kind is None or error["code"] == kind
    assert crowd.order() == ["first", "second"]
    records = gateway.records(4)
    assert [record["outcome"] for record in records[:2]] == ["rejected", "rejected"]
    assert {record["engine"] for record in records[:2]} == {""}


def test_a_wait_in_the_queue_ends(engine: StubEngine, start: Start) -> None:
    """With an error that says that trying again makes sense."""
    gateway = start([engine], ",cap=1", look_ahead=0, queue_s=0.2)
    crowd = Crowd(engine, gateway)
    crowd.send("first")
    answer = gateway.post()
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "queue_timeout"
    assert int(answer.headers["retry-after"]) >= 1
    assert crowd.order() == ["first"]


def test_a_pool_by_name(start: Start) -> None:
    """A header chooses among the operator's pools, and nothing else: no address comes from a
    client."""
    with StubEngine() as fast, StubEngine() as exact:
        gateway = start([f"vllm={exact.url},tier=0", f"sglang={fast.url},tier=2,depth=4"])
        gateway.post()
        gateway.post(headers={"x-pool": "tier2-depth4"})
        assert (len(exact.seen), len(fast.seen)) == (1, 1)
        for name in ("tier1", "http://127.0.0.1:1", f"vllm={fast.url}"):
            answer = gateway.post(headers={"x-pool": name})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "unknown_pool"
        for model in ("http://127.0.0.1:1/v1", "//evil", "../../etc", "vllm-1"):
            gateway.post({"model": model})
        assert (len(exact.seen), len(fast.seen)) == (5, 1)


def test_a_told_priority(engine: StubEngine, start: Start) -> None:
    """An engine that the operator says to take priorities is told each request's."""
    gateway = start([engine], ",priority=1")
    gateway.post({"priority": 5}, headers={"x-priority": "3"})
    assert engine.seen[0].headers["x-vllm-priority"] == "3"
    gateway.post({"priority": 5}, headers={"x-vllm-priority": "4"})
    assert engine.seen[1].headers["x-vllm-priority"] == "4"
    wait_until(lambda: len(gateway.app.ledger.records.ring) == 2)


@given(
    priorities=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
    turns=st.lists(st.booleans(), min_size=1, max_size=4),
    late=st.lists(st.integers(-3, 3), max_size=5),
)
async def test_the_order_of_those_who_wait_is_changed(
    priorities: list[int], turns: list[bool], late: list[int]
) -> None:
    """Whoever waits and whoever comes is served in the order that was asked for last."""
    pool = make_pool([1])
    (replica,) = pool.replicas
    holder = Visitor(pool, 0)
    waiting = [Visitor(pool, priority) for priority in priorities]
    await settle()
    for by_priority in turns:
        pool.serve_by_priority(by_priority)
    waiting += [Visitor(pool, priority) for priority in late]
    await settle()
    assert holder.task.done()
    expected = sorted(waiting, key=lambda one: (one.priority * turns[-1], one.number))
    for visitor in expected:
        pool.leave(replica)
        await settle()
        assert [one for one in waiting if one.task.done()] == [
            one for one in waiting if one in expected[: expected.index(visitor) + 1]
        ]


async def test_places_that_change_while_requests_run() -> None:
    """Fewer places end nobody and let nobody in until enough have left; more let in at once."""
    pool = make_pool([4])
    (replica,) = pool.replicas
    visitors = [Visitor(pool, 0) for _ in range(8)]
    await settle()
    replica.places = 2
    pool.places_changed()
    for left, running in ((1, 3), (2, 2), (3, 2)):
        pool.leave(replica)
        await settle()
        assert replica.in_flight == running
        assert sum(one.task.done() for one in visitors) == 4 + max(0, left - 2)
    replica.places = None
    pool.places_changed()
    await settle()
    assert all(one.task.done() for one in visitors)
