"""The least loaded node is next, none gets more than it has room for, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.rollouts.service.cluster.balance import (
    DRAINING,
    SILENT,
    UP,
    NodeStatus,
    assign_sessions,
    node_health,
)

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
