"""What a controller does when something is wrong, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.live.deployment import Deployment
from tests.live.faults import FAULTS, UNTOLD
from tests.live.operated_deployment import Play


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault(what: str, play: Play) -> None:
    """It happens after the fourth window and ends after the sixth."""
    happen, end, reason = FAULTS[what]
    played = play(20, {4: happen, 6: end})
    assert played.reasons[:4] == [None] * 4 and played.in_force[:4] == [40.0] * 4
    told = [str(why) for why in played.reasons[4:6]]
    assert any(reason in why for why in told), told
    assert played.in_force[5] == (64.0 if what in UNTOLD else 48.0)
    assert played.reports[5].in_control == ("engines" if what in UNTOLD else "best_static")
    assert played.reports[-1].in_control == played.reports[0].in_control == "policy"
    assert played.reasons[-1] is None and played.in_force[-1] == 40.0
    fallen = [place for place, why in enumerate(played.reasons) if why is not None]
    assert len(fallen) >= 3 and fallen == list(range(4, 4 + len(fallen)))
    # It comes back as soon as it may: two windows of trouble, one to look again, three in peace.
    assert len(fallen) <= 7
    logged = played.lines("window") + played.lines("event")
    assert any(reason in str(line["reason"]) for line in logged)


def test_a_fault_of_one_answer(play: Play) -> None:
    """Best static is in force in the very window in which it was refused something else."""
    played = play(6, {4: lambda one: setattr(one, "refuse_next", True)})
    assert played.in_force[3:5] == [40.0, 48.0]
    assert played.deployment.commands[5] is not None and played.reasons[4] is not None


EVENTS = st.dictionaries(st.integers(1, 12), st.sampled_from(sorted(FAULTS)), max_size=4)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(happen=EVENTS, end=EVENTS)
def test_any_faults_together(
    play: Play, happen: dict[int, str], end: dict[int, str], tmp_path: Path
) -> None:
    """No fault ends the controller; commands are allowed values; all is well some time after."""
    (tmp_path / "log.jsonl").unlink(missing_ok=True)

    def script(window: int) -> Callable[[Deployment], object]:
        def act(one: Deployment) -> None:
            if window in happen:
                FAULTS[happen[window]][0](one)
            if window in end:
                FAULTS[end[window]][1](one)
            if window == 13:
                for _, well, _ in FAULTS.values():
                    well(one)

        return act

    played = play(24, {window: script(window) for window in range(1, 14)})
    assert played.reasons[-1] is None and played.in_force[-1] == 40.0
    for command in played.deployment.commands:
        assert command is None or 1 <= command["batch_cap"] <= 64
