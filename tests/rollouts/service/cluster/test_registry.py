"""Assignment of sessions to nodes, and leases: each session has one owner, and ends once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.service.cluster.registry import (
    DRAINING,
    SILENT,
    UP,
    NodeRegistry,
    NodeStatus,
    UnknownNode,
    assign_sessions,
    node_health,
)
from jaxserve.rollouts.service.settings import POOLS, RolloutSettings
from jaxserve.rollouts.service.state.database import StateDatabase

SPEC: dict[str, Any] = {"instruction": "do", "agent": {"command": "true", "model": "m"}}


class Scene:
    """A service's nodes with a clock of their own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Nobody is there yet."""
        self.now_s = 0.0
        self.state = StateDatabase(folder / "state.sqlite3")
        chosen = RolloutSettings(silent_s=10.0, **settings)
        self.nodes = NodeRegistry(self.state, chosen, lambda: self.now_s)

    def join(self, id: str, start: str = "1", workers: int = 1, **more: Any) -> None:
        """A node registers."""
        about = {"id": id, "start": start, "pools": dict.fromkeys(POOLS, workers), **more}
        about |= {"gateway": "http://g", "control": f"http://{id}"}
        self.nodes.register(JsonObject(about, "node"))

    def submit(self, samples: int, task: str = "t") -> None:
        """A task with so many sessions, which are given."""
        self.state.submit(task, {**SPEC, "task_id": task}, samples, False)
        self.nodes.schedule()

    def owners(self) -> dict[str, str | None]:
        """The node of each session."""
        return {row.id: row.node for row in self.state.sessions("t")}

    def keys(self) -> list[tuple[str, str]]:
        """Gateways' sessions whose keys may be open, and the doors of these gateways."""
        return [(key.recorded, key.control) for key in self.state.open_keys()]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Without nodes."""
    made = Scene(tmp_path)
    yield made
    made.state.close()


def test_heartbeats_admit_nothing_more(scene: Scene) -> None:
    """Leases stand in the database: nodes have at most their slots, however often they are heard;
    who has ended its run makes room."""
    scene.join("a")
    scene.join("b", workers=2)
    scene.submit(10)
    for _ in range(3):
        scene.nodes.heartbeat("a", "1")
        scene.nodes.heartbeat("b", "1")
        scene.nodes.schedule()
    owners = list(scene.owners().values())
    assert [owners.count(node) for node in ("a", "b", None)] == [2, 4, 4]
    (first, _) = scene.nodes.leases("a")
    assert scene.state.move(first.session.id, "POST_RUN", lease=first.session.lease)
    scene.nodes.schedule()
    assert list(scene.owners().values()).count("a") == 3


def test_a_silent_node_is_lost(scene: Scene) -> None:
    """A lost node's sessions go to another node; its later reports change nothing."""
    scene.join("a")
    scene.submit(2)
    late, before = scene.nodes.leases("a")
    assert scene.state.move(late.session.id, "RUNNING", lease=late.session.lease, attempt=1)
    scene.now_s = 11.0
    scene.join("b")
    scene.nodes.schedule()
    assert set(scene.owners().values()) == {"b"}
    assert not scene.state.move(late.session.id, "COMPLETED", lease=late.session.lease)
    assert scene.state.session(late.session.id).state == "REGISTERED"
    reasons = [e["reason"] for e in scene.state.events(0, 100, late.session.id)]
    assert reasons[-1] == "node a was lost"
    scene.nodes.heartbeat("a", "1")
    assert scene.nodes.leases("a") == []
    for lease in scene.nodes.leases("b"):
        assert scene.state.move(lease.session.id, "COMPLETED", lease=lease.session.lease)
        assert not scene.state.move(lease.session.id, "ERROR", lease=lease.session.lease)
    assert before.session.id in scene.owners()


def test_a_node_that_comes_back(scene: Scene) -> None:
    """Goes on where an agent had ended, and begins the others again; an older lease is over."""
    scene.join("a")
    scene.submit(2)
    running, built = scene.nodes.leases("a")
    scene.state.move(running.session.id, "RUNNING", lease=running.session.lease, attempt=1)
    scene.state.move(built.session.id, "BUILDING", lease=built.session.lease, run={"a": 1})
    scene.join("a", start="2")
    scene.nodes.schedule()
    with pytest.raises(UnknownNode):
        scene.nodes.heartbeat("a", "1")
    now = {lease.session.id: lease.session for lease in scene.nodes.leases("a")}
    assert now[built.session.id].state == "BUILDING" and now[built.session.id].run == {"a": 1}
    assert now[running.session.id].state == "REGISTERED"
    assert scene.keys() == [(f"{running.session.id}.1", "http://a")]
    for old in (running, built):
        assert now[old.session.id].lease > old.session.lease
        assert not scene.state.holds(*old.key)


def test_a_session_begins_so_often_and_no_more(tmp_path: Path) -> None:
    """After the last attempt the session ends with the reason."""
    scene = Scene(tmp_path, attempts=2)
    assert scene.keys() == []
    for attempt in (1, 2):
        scene.join("a", start=str(attempt))
        if attempt == 1:
            scene.submit(1)
        scene.nodes.schedule()
        (lease,) = scene.nodes.leases("a")
        scene.state.move("t.0", "RUNNING", lease=lease.session.lease, attempt=attempt)
    scene.join("a", start="3")
    row = scene.state.session("t.0")
    assert (row.state, row.reason) == ("ERROR", "its node was lost in each of 2 attempts")
    assert row.result == {"reward": None, "records": "t.0.2", "attempt": 2}
    # The key of each attempt is open at the gateway of its node, until somebody has closed it.
    keys = [("t.0.1", "http://a"), ("t.0.2", "http://a")]
    assert scene.keys() == keys
    scene.state.forget_key(scene.state.open_keys()[0])
    scene.state.close()
    scene = Scene(tmp_path)
    assert scene.keys() == keys[1:]
    scene.state.close()


def test_a_cancelled_session_leaves_its_key(scene: Scene) -> None:
    """The node may be dead: the key of a begun session is noted; before its begin it has none."""
    scene.join("a", workers=2)
    scene.submit(3)
    begun, ended, *_ = scene.nodes.leases("a")
    for one in (begun, ended):
        scene.state.move(one.session.id, "RUNNING", lease=one.session.lease, attempt=1)
    scene.state.move(ended.session.id, "COMPLETED", lease=ended.session.lease)
    cancelled = scene.state.cancel("t")
    assert sorted([*cancelled, ended.session.id]) == ["t.0", "t.1", "t.2"]
    rows = [scene.state.session(id) for id in cancelled]
    assert {(row.state, row.reason) for row in rows} == {("ERROR", "cancelled")}
    assert all(row.result["reward"] is None for row in rows)
    assert {row.result.get("attempt") for row in rows} == {1, None}
    assert scene.keys() == [(f"{begun.session.id}.1", "http://a")]
    assert scene.state.cancel("t") == []


def test_whether_a_key_was_made(scene: Scene) -> None:
    """A key was certainly made where its session was ready; a session that waits to begin again has
    only the key of its earlier attempt."""
    scene.join("a", workers=2)
    scene.submit(4)
    ready, begun, again, _ = scene.nodes.leases("a")
    for one in (ready, begun, again):
        values = {"lease": one.session.lease, "attempt": 1}
        scene.state.move(one.session.id, "INITIALIZING", **values)
    scene.state.move(ready.session.id, "READY", lease=ready.session.lease)
    scene.now_s = 11.0
    scene.join("b", workers=2)
    scene.nodes.schedule()
    assert scene.owners()[again.session.id] == "b"
    scene.state.cancel("t")
    made = {key.recorded: (key.control, key.made) for key in scene.state.open_keys()}
    assert made == {
        f"{ready.session.id}.1": ("http://a", True),
        f"{begun.session.id}.1": ("http://a", False),
        f"{again.session.id}.1": ("http://a", False),
    }


def test_drain_leave_and_models(scene: Scene) -> None:
    """A draining node keeps what it has; one that leaves gives it back at once; a session that
    asks for a model goes where it is served."""
    scene.join("a", models=["other"])
    scene.submit(1)
    assert scene.owners() == {"t.0": None}
    scene.join("b", models=["m"])
    scene.nodes.drain("b", True)
    scene.nodes.schedule()
    assert scene.owners() == {"t.0": None}
    scene.nodes.drain("b", False)
    scene.nodes.schedule()
    assert scene.owners() == {"t.0": "b"}
    scene.nodes.leave("b", "1")
    scene.nodes.schedule()
    assert scene.owners() == {"t.0": None}
    with pytest.raises(InputError, match="node is 'x'; it must be one that has registered"):
        scene.nodes.drain("x", True)


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    """Without nodes a session ends when its time is up, with the reason."""
    scene = Scene(tmp_path, queue_s=0.1)
    scene.submit(1)
    scene.state._sql.execute("UPDATE sessions SET since = since - 1")
    scene.nodes.schedule()
    row = scene.state.session("t.0")
    assert (row.state, row.reason) == ("ERROR", "no node took it within 0.1 s")
    scene.state.close()


NODES = st.lists(
    st.builds(
        NodeStatus,
        id=st.sampled_from("abcde"),
        health=st.sampled_from((UP, DRAINING, SILENT)),
        slots=st.integers(1, 5),
        held=st.integers(0, 6),
        models=st.sampled_from(((), ("m",), ("m", "n"))),
    ),
    unique_by=lambda node: node.id,
    max_size=5,
)


@given(NODES, st.lists(st.sampled_from(("m", "n", "o")), max_size=20))
def test_what_is_given(nodes: list[NodeStatus], models: list[str]) -> None:
    """Each session once, in order, to a node that is up, serves its model and has room; the others
    find no such node."""
    waiting = [(f"s{place}", model) for place, model in enumerate(models)]
    found = assign_sessions(nodes, waiting)
    given_to, now = dict(found), {node.id: node for node in nodes}
    assert len(given_to) == len(found)
    for session, model in waiting:
        free = [node for node in now.values() if node.takes(model)]
        if session not in given_to:
            assert not free
            continue
        node = now[given_to[session]]
        assert node.health == UP and node.held < node.slots
        assert all(node.held / node.slots <= other.held / other.slots for other in free)
        now[node.id] = replace(node, held=node.held + 1)


def test_health() -> None:
    """Silence counts more than the wish to drain."""
    assert node_health(1.0, False, 5.0) == UP
    assert node_health(1.0, True, 5.0) == DRAINING
    assert node_health(6.0, True, 5.0) == SILENT
