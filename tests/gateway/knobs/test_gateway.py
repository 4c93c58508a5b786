"""Knobs of the gateway itself: places at engines, order of the queue, who serves new requests."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.engines.admission import Pool, build_pools
from jaxserve.gateway.engines.specs import parse_engines
from jaxserve.gateway.knobs.gateway import gateway_knobs


def pools_of(*options: str) -> Mapping[str, Pool]:
    """Engines with these options."""
    texts = [f"vllm=http://e{place}{option}" for place, option in enumerate(options)]
    return build_pools(parse_engines(texts), capacity=10, look_ahead=2)


def places(pools: Mapping[str, Pool]) -> list[int | None]:
    return [replica.places for pool in pools.values() for replica in pool.replicas]


def test_a_batch_cap_where_there_was_none() -> None:
    """So many places and a few more; without a value no limit, as before."""
    pools = pools_of("", "")
    cap = gateway_knobs(pools, look_ahead=2)["batch_cap"]
    assert (cap.static, cap.now(), cap.least) == (None, None, 1)
    cap.turn(8.0)
    assert places(pools) == [10, 10] and cap.now() == 8.0
    cap.turn(cap.static)
    assert places(pools) == [None, None] and cap.now() is None
    assert cap.shown()["how"] == "approximated" and cap.shown()["where"] == "gateway"


def test_a_batch_cap_below_the_operators() -> None:
    """Never above it; where the operator's differ there is none to name, and each comes back."""
    pools = pools_of(",cap=16", ",cap=16")
    cap = gateway_knobs(pools, look_ahead=2)["batch_cap"]
    assert (cap.static, cap.most) == (16, 16)
    cap.turn(4.0)
    assert places(pools) == [6, 6]
    cap.turn(16.0)
    assert places(pools) == [18, 18]
    uneven = pools_of(",cap=16", ",cap=4")
    cap = gateway_knobs(uneven, look_ahead=2)["batch_cap"]
    cap.turn(8.0)
    cap.turn(cap.static)
    assert places(uneven) == [18, 6]


def test_the_order_of_the_queue() -> None:
    """By priority unless it is turned off, in every pool."""
    pools = pools_of(",tier=0", ",tier=1")
    routing = gateway_knobs(pools, look_ahead=2)["priority_routing"]
    assert routing.now() == routing.static == 1
    routing.turn(0.0)
    assert not any(pool.by_priority for pool in pools.values()) and routing.now() == 0
    routing.turn(routing.static)
    assert all(pool.by_priority for pool in pools.values())


def default_of(pools: Mapping[str, Pool]) -> str:
    (name,) = [name for name, pool in pools.items() if pool.default]
    return name


def test_pools_by_tier() -> None:
    """New requests go where they were asked to; without a lease to the first pool."""
    pools = pools_of(",tier=1", ",tier=0", ",tier=2")
    tier = gateway_knobs(pools, look_ahead=2)["quantization_tier"]
    assert tier.allowed == (0.0, 1.0, 2.0) and tier.static == tier.now() == 1
    for value, name in ((0, "tier0"), (2, "tier2"), (tier.static, "tier1")):
        tier.turn(value)
        assert default_of(pools) == name and tier.now() == value


def test_what_is_in_force_is_what_is_said() -> None:
    """Where no pool agrees in both, the value that is not in force is not claimed."""
    pools = pools_of(",tier=0,depth=0", ",tier=0,depth=4", ",tier=1,depth=0")
    knobs = gateway_knobs(pools, look_ahead=2)
    knobs["quantization_tier"].turn(1.0)
    knobs["speculation_depth"].turn(4.0)
    spec = pools[default_of(pools)].replicas[0].spec
    assert knobs["quantization_tier"].now() == spec.tier
    assert knobs["speculation_depth"].now() == spec.depth
    assert (spec.tier, spec.depth) != (1, 4)


@pytest.mark.parametrize(
    "options",
    [("", ""), (",tier=0", ""), (",tier=0", ",tier=0"), (",tier=0,pool=a", ",tier=1,pool=a")],
)
def test_pools_that_cannot_be_told_apart(options: tuple[str, ...]) -> None:
    """No choice is offered where there is none, or where replicas of one pool differ."""
    assert "quantization_tier" not in gateway_knobs(pools_of(*options), look_ahead=2)


@given(
    turns=st.lists(
        st.tuples(
            st.sampled_from(["quantization_tier", "speculation_depth", "batch_cap"]),
            st.integers(0, 2),
        ),
        max_size=8,
    )
)
def test_all_comes_back(turns: list[tuple[str, int]]) -> None:
    """Whatever was turned, static values bring back what was there; one pool is the default."""
    pools = pools_of(",tier=0,depth=0,cap=8", ",tier=1,depth=2", ",tier=2,depth=1")
    before = places(pools)
    knobs = gateway_knobs(pools, look_ahead=2)
    for name, value in turns:
        knobs[name].turn(float(max(value, 1) if name == "batch_cap" else value))
        default_of(pools)
    for knob in knobs.values():
        knob.turn(knob.static)
        assert knob.now() == knob.static or knob.static is None
    assert places(pools) == before and default_of(pools) == "tier0-depth0"
