"""Routings: engines in turn, by load, or by the share of the prompt that an engine has seen."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jaxserve.gateway.engines import routing
from jaxserve.gateway.engines.admission import Replica
from jaxserve.gateway.engines.routing import LOAD_WEIGHT, ROUTINGS, EngineRouting
from jaxserve.gateway.engines.specs import parse_engines
from tests.gateway.conftest import Start
from tests.gateway.stub_engine import StubEngine

LONG = "word " * 400


def replicas(count: int) -> list[Replica]:
    """Idle engines without a cap."""
    texts = [f"vllm=http://127.0.0.1:{9000 + i}" for i in range(count)]
    return [Replica(spec, None) for spec in parse_engines(texts)]


def send(chosen: EngineRouting, engines: list[Replica], fields: Any, number: int) -> int:
    """The place of the engine that gets a request, which stays there."""
    prefix = chosen.prefix(fields)
    replica = chosen.choose(engines, prefix)
    replica.in_flight += 1
    replica.last_used = number
    return engines.index(replica)


def chat(*turns: str) -> dict[str, Any]:
    """A conversation of so many turns."""
    return {"model": "m", "messages": [{"role": "user", "content": turn} for turn in turns]}


def test_in_turn_whatever_the_load() -> None:
    """Every engine as often."""
    engines = replicas(3)
    engines[1].in_flight = 50
    turns = [send(ROUTINGS["round_robin"](), engines, {}, number) for number in range(1, 7)]
    assert turns == [0, 1, 2, 0, 1, 2]


def test_conversations_return_to_their_engine() -> None:
    """While loads are alike: each turn begins as the one before it."""
    chosen, engines = ROUTINGS["prefix_affinity"](), replicas(4)
    homes = {}
    for number, user in enumerate("abcd"):
        homes[user] = send(chosen, engines, chat(user + LONG), number + 1)
    assert sorted(homes.values()) == [0, 1, 2, 3]
    for one in engines:
        one.in_flight = 3
    order = random.Random(0).sample("abcd", 4)
    for number, user in enumerate(order):
        assert send(chosen, engines, chat(user + LONG, "more"), number + 9) == homes[user]


def test_load_outweighs_what_is_known() -> None:
    """A full match is worth a load that is LOAD_WEIGHT of the greatest; two thirds are not."""
    chosen, engines = ROUTINGS["prefix_affinity"](), replicas(2)
    home = send(chosen, engines, chat(LONG), 1)
    other = engines[1 - home]
    engines[home].in_flight, other.in_flight = 100, 0
    assert 1.0 - LOAD_WEIGHT > 0.0
    assert send(chosen, engines, chat(LONG), 2) == home
    # Half of this prompt is known, which an idle engine outweighs.
    assert send(chosen, engines, chat(LONG, "x" + LONG + LONG), 3) == 1 - home


def test_a_common_beginning_counts_only_from_the_start() -> None:
    """The same words after other ones are another prefix."""
    chosen = ROUTINGS["prefix_affinity"]()
    first, second = chosen.prefix(chat(LONG)), chosen.prefix(chat("other", LONG))
    assert len(first) > 5 and not set(first[1:]) & set(second[1:])
    assert chosen.prefix(chat(LONG, "more"))[: len(first) - 1] == first[:-1]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks that were used last stay."""
    monkeypatch.setattr(routing, "_REMEMBERED", 20)
    chosen, engines = ROUTINGS["prefix_affinity"](), replicas(1)
    for number in range(50):
        send(chosen, engines, chat(f"{number}" + LONG), number)
    assert isinstance(chosen, routing.PrefixAffinity) and len(chosen._seen) == 20
    assert chosen._matched("vllm-0", chosen.prefix(chat("49" + LONG))) == 1.0
    assert chosen._matched("vllm-0", chosen.prefix(chat("1" + LONG))) == 0.0


@pytest.mark.parametrize("fields", [{}, {"messages": None}, {"prompt": [1, 2, 3]}, {"input": ""}])
def test_prompts_of_any_kind(fields: Any) -> None:
    """A prompt without text matches nothing, and is served."""
    assert send(ROUTINGS["prefix_affinity"](), replicas(2), fields, 1) == 0


def test_through_a_gateway(start: Start) -> None:
    """Conversations of three users on two engines stay where they began."""
    with StubEngine() as first, StubEngine() as second:
        gateway = start([first, second], routing="prefix_affinity")
        for turn in range(1, 5):
            for user in "abc":
                body = chat(*(f"{user}{n}" + LONG for n in range(turn)))
                assert gateway.post(body).status_code == 200
        where = [record["engine"] for record in gateway.records(12)]
        for user in range(3):
            assert len(set(where[user::3])) == 1
        assert len(set(where)) == 2
