"""Clients take turns, and nothing is lost or reordered within a client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.turns import Turns


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_turns(clients: list[str]) -> None:
    """Between two items of one client, each other client that waits has one; a client's items keep
    their order; iteration tells all that wait."""
    turns: Turns[tuple[str, int]] = Turns()
    items = [(client, number) for number, client in enumerate(clients)]
    for item in items:
        turns.add(item[0], item)
    assert sorted(turns) == sorted(items)
    taken = []
    while turns:
        taken.append(turns.pop())
    for client in "abc":
        own = [item for item in items if item[0] == client]
        assert [item for item in taken if item[0] == client] == own
    rounds = max(map(clients.count, "abc"), default=0)
    expected = [{c for c in "abc" if clients.count(c) > number} for number in range(rounds)]
    for waiting in expected:
        first, taken = taken[: len(waiting)], taken[len(waiting) :]
        assert {client for client, _ in first} == waiting
    with pytest.raises(KeyError):
        turns.pop()
