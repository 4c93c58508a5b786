"""Knobs under a lease."""

import pytest

from jaxserve.engine_control.command import Command, CommandError
from jaxserve.engine_control.leased_knobs import LeasedKnobs, NotOffered, OfferedKnob


class Engine:
    """Two knobs and a clock."""

    def __init__(self, static: dict[str, float] | None = None) -> None:
        self.values: dict[str, float | None] = {"batch_cap": 64, "speculation_depth": None}
        self.now = 100.0
        self.knobs = LeasedKnobs(
            {
                "batch_cap": self.knob("batch_cap", 1, 64),
                "speculation_depth": self.knob("speculation_depth", 0, 4),
                "priority_routing": NotOffered("it was started without"),
            },
            static,
            clock=lambda: self.now,
        )

    def knob(self, name: str, least: float, most: float) -> OfferedKnob:
        def turn(value: float | None) -> None:
            self.values[name] = value

        return OfferedKnob(least, most, turn, lambda: self.values[name])


def test_a_command_holds_for_its_lease() -> None:
    """The values are in force until the lease is over; then the static ones are, by themselves."""
    engine = Engine()
    engine.knobs.put(Command(10.0, {"batch_cap": 8, "speculation_depth": 2}))
    assert engine.values == {"batch_cap": 8, "speculation_depth": 2}
    state = engine.knobs.state()
    assert (state["mode"], state["lease_left_s"], state["version"]) == ("leased", 10.0, 1)
    engine.now += 9.99
    assert not engine.knobs.expire()
    assert engine.values["batch_cap"] == 8
    engine.now += 0.01
    assert engine.knobs.expire()
    assert engine.values == {"batch_cap": 64, "speculation_depth": None}
    assert not engine.knobs.expire()
    state = engine.knobs.state()
    assert (state["mode"], state["lease_left_s"], state["version"]) == ("static", 0.0, 2)


def test_the_state_never_shows_a_lease_that_is_over() -> None:
    """Even where no step has been taken since."""
    engine = Engine()
    engine.knobs.put(Command(1.0, {"batch_cap": 8}))
    engine.now += 2
    state = engine.knobs.state()
    assert (state["mode"], state["knobs"]["batch_cap"]["now"]) == ("static", 64)


def test_a_further_command_starts_the_lease_anew() -> None:
    """Knobs that it does not name stay, unless the lease was over before it came."""
    engine = Engine()
    engine.knobs.put(Command(10.0, {"batch_cap": 8}))
    engine.now += 9
    engine.knobs.put(Command(10.0, {"speculation_depth": 1}))
    engine.now += 9
    assert not engine.knobs.expire()
    assert engine.values == {"batch_cap": 8, "speculation_depth": 1}
    engine.now += 5
    engine.knobs.put(Command(1.0, {"speculation_depth": 3}))
    assert engine.values == {"batch_cap": 64, "speculation_depth": 3}


def test_release_ends_the_lease() -> None:
    """At once; a second time changes nothing."""
    engine = Engine()
    engine.knobs.put(Command(10.0, {"batch_cap": 8}))
    engine.knobs.release()
    assert engine.values["batch_cap"] == 64
    version = engine.knobs.state()["version"]
    engine.knobs.release()
    assert engine.knobs.state()["version"] == version


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"batch_cap": 65}, "batch_cap is 65; this engine allows 1 to 64"),
        ({"batch_cap": 0}, "batch_cap is 0; this engine allows 1 to 64"),
        ({"priority_routing": 1}, "priority_routing cannot be turned: it was started without"),
    ],
)
def test_a_refused_command_changes_nothing(knobs: dict[str, float], message: str) -> None:
    """Neither the knobs that would have been allowed, nor the lease."""
    engine = Engine()
    engine.knobs.put(Command(10.0, {"batch_cap": 8}))
    before = engine.knobs.state()
    with pytest.raises(CommandError, match=message):
        engine.knobs.put(Command(99.0, {"speculation_depth": 1, **knobs}))
    assert engine.knobs.state() == before
    assert engine.values == {"batch_cap": 8, "speculation_depth": None}


def test_static_values_of_the_operators_own() -> None:
    """They are in force from the start and after a lease, and within what the engine allows."""
    engine = Engine({"batch_cap": 16})
    assert engine.values["batch_cap"] == 16
    engine.knobs.put(Command(1.0, {"batch_cap": 64}))
    engine.now += 1
    engine.knobs.expire()
    assert engine.values["batch_cap"] == 16
    assert engine.knobs.state()["knobs"] == {
        "batch_cap": {"offered": True, "now": 16, "static": 16, "least": 1, "most": 64},
        "speculation_depth": {"offered": True, "now": None, "static": None, "least": 0, "most": 4},
        "priority_routing": {"offered": False, "reason": "it was started without"},
    }
    with pytest.raises(CommandError, match="this engine allows"):
        Engine({"batch_cap": 128})
