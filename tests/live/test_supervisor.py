"""Who steers: after a fault the static setting, and the policy again once it is well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.live.supervisor import Health, Mode, Rules, Supervision, supervise

GOOD = Health(None, 10.0, 10.0)
LOW = Health(None, 5.0, 10.0)
FAULT = Health("something broke")

HEALTH = st.one_of(
    st.just(FAULT),
    st.builds(Health, st.none(), st.floats(0, 50), st.floats(0, 50)),
    st.sampled_from([GOOD, LOW]),
)
RULES = st.builds(
    Rules,
    windows=st.integers(1, 6),
    share=st.floats(0.1, 1.0),
    fewest=st.floats(0.0, 20.0),
    recover=st.integers(1, 5),
    longest=st.integers(5, 40),
)


def after(rules: Rules, healths: list[Health]) -> list[Supervision]:
    """The state after each window."""
    states = [Supervision()]
    for health in healths:
        states.append(supervise(rules, states[-1], health))
    return states[1:]


@given(rules=RULES, healths=st.lists(HEALTH, max_size=120))
def test_any_sequence(rules: Rules, healths: list[Health]) -> None:
    """After a fault the next command is static and says why. Between a fall and the return there
    are always enough windows in a row without a fault. A return never waits for longer than the
    longest, and the policy never loses the wheel without a reason."""
    states = after(rules, healths)
    healthy = 0
    fell_at: int | None = None
    before = Supervision()
    for place, (health, state) in enumerate(zip(healths, states, strict=True)):
        if health.fault is not None:
            assert not state.steering and state.reason == health.fault
        healthy = 0 if health.fault is not None or before.steering else healthy + 1
        if before.steering and not state.steering:
            assert health.fault is not None or "goodput" in str(state.reason)
            assert rules.recover <= state.recover <= max(rules.longest, rules.recover)
            fell_at = place
        if not before.steering and state.steering:
            assert fell_at is not None and place - fell_at >= rules.recover
            assert healthy >= before.recover
        if not state.steering:
            assert healthy < max(rules.longest, rules.recover)
        before = state


@given(rules=RULES, healths=st.lists(HEALTH, max_size=60))
def test_it_always_comes_back(rules: Rules, healths: list[Health]) -> None:
    """Whatever has happened, enough windows that are well give the policy the wheel: those after
    which no low one counts any more, and then the longest rest."""
    enough = rules.windows + max(rules.longest, rules.recover)
    states = after(rules, [*healths, *[GOOD] * enough])
    assert states[-1].steering


def test_goodput_below_the_expectation() -> None:
    """Over all windows together, and only where enough was expected."""
    rules = Rules(windows=3, share=0.8, fewest=10.0, recover=2)
    assert [s.steering for s in after(rules, [LOW, LOW, LOW])] == [True, True, False]
    reason = after(rules, [LOW, LOW, LOW])[-1].reason
    assert reason == (
        "goodput was 15 requests in 3 windows, and 30 are expected of the static setting"
    )
    assert all(s.steering for s in after(rules, [LOW, GOOD, GOOD, LOW, GOOD, GOOD]))
    quiet = Health(None, 0.0, 3.0)
    assert all(s.steering for s in after(rules, [quiet] * 20))


@given(share=st.floats(0.0, 1.0), rules=RULES)
def test_requests_that_nobody_can_judge_trip_nothing(share: float, rules: Rules) -> None:
    """Where all that are judged are good, the policy keeps the wheel whatever share they are; where
    none is, it loses it as if there were no others."""
    ended = 1000
    unjudged = round(share * ended)
    good = Health(None, ended - unjudged, ended, ended, unjudged)
    assert all(state.steering for state in after(rules, [good] * 20))
    low = Health(None, 0.0, ended, ended, unjudged)
    falls = rules.windows * (ended - unjudged) >= max(rules.fewest, 1)
    found = after(rules, [low] * rules.windows)[-1].reason
    assert (found is not None) == falls
    if falls and unjudged > 0:
        assert f"; {unjudged / ended:.0%} not judged" in str(found)


def test_a_policy_that_is_always_worse() -> None:
    """It gets the wheel for a while, after ever longer rests, which have an end."""
    rules = Rules(windows=3, recover=2, longest=16)
    states = after(rules, [LOW] * 300)
    rests, run = [], 0
    for state in states:
        if state.steering and run:
            rests.append(run)
        run = 0 if state.steering else run + 1
    assert rests[:5] == [2, 4, 8, 16, 16] and set(rests[5:]) == {16}


def test_a_fault_does_not_shorten_the_rest() -> None:
    """And a policy that holds for long enough rests for as short as at first."""
    rules = Rules(windows=3, recover=2, longest=16)
    twice = after(rules, [LOW] * 3 + [GOOD] * 2 + [LOW] * 3)
    assert twice[-1].recover == 4
    recovered = after(rules, [LOW] * 3 + [GOOD] * 2 + [LOW] * 3 + [GOOD] * 4 + [FAULT])
    assert not recovered[-1].steering and recovered[-1].recover == 4
    held = after(rules, [LOW] * 3 + [GOOD] * 2 + [LOW] * 3 + [GOOD] * 30 + [FAULT])
    assert held[-1].recover == 2


def test_modes() -> None:
    """Only two of them turn anything."""
    assert [mode for mode in Mode if mode.steers] == [Mode.GUARDED, Mode.FREE]
