"""The controller in virtual time: whatever breaks, static values are in force within two windows,
the reason is told and written down, and the policy steers again when it has been well."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.live.episode_file import read_episode
from jaxserve.live.supervisor import Mode, Rules
from tests.live.deployment import WINDOW_S, Deployment, Slow, window_answer
from tests.live.faults import FAULTS
from tests.live.operated_deployment import Play, Played, Script


def test_a_deployment_that_is_well(play: Play, setup: TaskSetup) -> None:
    """The policy steers, every command is obeyed, the lease ends with the controller."""
    played = play(6)
    assert played.reasons == [None] * 6
    told = {"batch_cap": 40, "kv_budget_fraction": pytest.approx(0.9)}
    assert played.deployment.commands == [told] * 6 + [None]
    assert played.deployment.values == {"batch_cap": 64, "kv_budget_fraction": 1.0}
    found = played.reports[-1].comparison
    assert found is not None and found.seen.good == 8.0
    assert found.in_force.good > 0.0 and found.static.good > 0.0
    episode = read_episode(played.log, setup.env)
    assert episode.rollout.timesteps.reward.shape == (1, 6)
    assert [float(cap) for cap in episode.rollout.actions.batch_cap[0]] == [64, *[40] * 5]
    assert episode.notes[-1]["echo"]["batch_cap"] == {"how": "exact", "asked": 40, "now": 40}
    assert episode.notes[-1]["echo"]["speculation_depth"]["how"] == "restart_required"


def test_a_command_does_not_wait_for_the_knobs(play: Play) -> None:
    """They are asked for before the window's end, so that the command comes at its end."""
    slow = Slow()
    played = play(4, deployment=slow)
    assert played.reasons == [None] * 4
    begun_s = slow.told_s[0] - WINDOW_S
    expected = [begun_s + (window + 1) * WINDOW_S for window in range(4)]
    assert slow.told_s == pytest.approx(expected)
    assert begun_s == pytest.approx(Deployment().now_s + Slow.TAKES_S)


def test_operating_has_no_end(
    setup: TaskSetup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Steps and costs begin anew after every horizon, also where its first window is not seen."""
    env = dataclasses.replace(setup.env, horizon=jnp.int32(4))
    happen, end, _ = FAULTS["the window is garbage"]
    script: Script = {8: happen, 9: end}
    played = Played(dataclasses.replace(setup, env=env), monkeypatch, tmp_path, 16, script)
    seen = [line["observation"] for line in played.lines("window")]
    steps = [one["step_index"] for one in seen]
    # Nothing is known of the ninth window, nor of what was so when the tenth began.
    assert steps == [1, 2, 3, 4, 1, 2, 3, 4, 3, 4, 1, 2, 3, 4]
    costs = [one["cost_so_far"] for one in seen]
    assert costs[4] == pytest.approx(costs[0]) and costs[8] == pytest.approx(costs[0])
    assert max(costs) == pytest.approx(costs[3])


def test_the_gateway_was_on_another_machine(play: Play) -> None:
    """Its clock begins anew: the time of the last window is in its future."""

    def restart(one: Deployment) -> None:
        one.now_s, one.gateway = 5.0, "two"

    played = play(16, {4: restart})
    assert played.reasons[4] is not None and played.reasons[-1] is None
    assert played.in_force[-1] == 40.0


def test_no_window_is_played_twice_after_a_stop(play: Play) -> None:
    """Windows that were slept through are not made up for by short ones."""
    played = play(12, {4: lambda one: setattr(one, "stopped_s", 7.3)})
    seconds = [line["seconds"] for line in played.lines("window")]
    assert sorted(seconds)[-1] == pytest.approx(8.3)
    assert sorted(seconds)[:-1] == pytest.approx([WINDOW_S] * 11)


def test_a_wall_clock_that_jumps(play: Play) -> None:
    """An hour ahead and two back: the log has it, and nothing else notices."""
    steady = play(6)
    deployment = Deployment()

    def jump(hours: float) -> Callable[[Deployment], object]:
        return lambda one: setattr(one, "wall_s", one.wall_s + 3600.0 * hours)

    before = len(steady.lines("window"))
    jumped = play(6, {2: jump(1), 4: jump(-2)}, deployment=deployment)
    assert jumped.reasons == steady.reasons == [None] * 6
    assert deployment.commands == steady.deployment.commands
    lines = jumped.lines("window")[before:]
    assert [line["seconds"] for line in lines] == pytest.approx([WINDOW_S] * 6)
    steps = [after["unix_s"] - one["unix_s"] for one, after in itertools.pairwise(lines)]
    assert [round(step) for step in steps] == [1, 3601, 1, -7199, 1]


def test_a_policy_whose_output_is_no_number(play: Play) -> None:
    """Not a NaN goes to an engine."""
    played = play(14, caps=[40.0, 40.0, None, None, 40.0])
    assert played.reasons[2] == "the policy's output is not finite"
    assert played.in_force[2] == 48.0
    told = [command for command in played.deployment.commands if command is not None]
    assert {command["batch_cap"] for command in told} == {40, 48}
    assert played.reasons[-1] is None and played.in_force[-1] == 40.0


def test_goodput_below_what_static_would_give(play: Play) -> None:
    """It falls back with the figures, comes back, falls again and then rests for longer."""
    rules = Rules(windows=4, recover=2, fewest=5.0)
    played = play(30, {2: lambda one: setattr(one, "good", 0.2)}, rules=rules)
    reasons = [why for why in played.reasons if why is not None]
    assert all(why.startswith("goodput was ") for why in reasons)
    runs = "".join("s" if why is None else "f" for why in played.reasons)
    rests = [len(run) for run in runs.split("s") if run]
    assert rests[:2] == [2, 4]
    for cap, why in zip(played.in_force, played.reasons, strict=True):
        assert cap == (40.0 if why is None else 48.0)


@pytest.mark.parametrize("judged", [1, 4])
def test_requests_that_cannot_be_judged_cost_no_window(play: Play, judged: int) -> None:
    """Clients that do not stream, or leave: the share is in the line and in the log, and the policy
    keeps the wheel; compliance counts the others only."""
    deployment = Deployment()
    chat = window_answer()["classes"]["chat"]
    chat |= {"good": judged, "judged": judged, "unjudged": 8 - judged}
    deployment.window_fields = {"classes": {"chat": chat}}
    played = play(12, deployment=deployment, rules=Rules(windows=4, recover=2, fewest=1.0))
    assert played.reasons == [None] * 12
    found = played.reports[-1].comparison
    assert found is not None and (found.ended, found.unjudged) == (8, 8 - judged)
    line = played.lines("window")[-1]
    assert (line["ended"], line["unjudged"]) == (8, 8 - judged)
    assert line["observation"]["slo_compliance_rate"] == 1.0


def test_shadow_changes_nothing(play: Play) -> None:
    """It says what it would do, and what is expected of that; nothing is limited or counted."""
    played = play(5, mode=Mode.SHADOW, most_changes={"batch_cap": 0})
    assert played.deployment.commands == []
    assert {report.mode for report in played.reports} == {"shadow"}
    assert [report.command["batch_cap"] for report in played.reports] == [40] * 5
    assert all(report.changes == {} for report in played.reports)
    found = played.reports[-1].comparison
    assert found is not None and found.policy.good > 0.0
    assert all(line["told"] == line["changes"] == {} for line in played.lines("window"))
    assert play(3, mode=Mode.OFF).deployment.commands == []


def test_shadow_says_what_is_wrong(play: Play) -> None:
    """And turns nothing then either."""
    played = play(8, {2: FAULTS["the gateway cannot be reached"][0]}, mode=Mode.SHADOW)
    assert played.reports[3].comparison is None and "reached" in str(played.reasons[3])
    assert played.deployment.commands == []


def test_the_switch(play: Play) -> None:
    """Off, nothing is told, whoever asks; on again, the policy steers from where things are."""

    def off(one: Deployment) -> None:
        one.held, one.values = True, dict(one.static)

    played = play(9, {3: off, 6: lambda one: setattr(one, "held", False)})
    modes = [report.mode for report in played.reports]
    assert modes == ["guarded"] * 3 + ["off (the switch)"] * 3 + ["guarded"] * 3
    assert len([c for c in played.deployment.commands if c is not None]) == 6
    assert played.in_force[3:6] == [64.0] * 3 and played.in_force[-1] == 40.0


def test_steps_of_the_modes(play: Play) -> None:
    """Guarded halves at most; free does as the policy says."""
    assert play(5, caps=[4.0]).in_force == [32.0, 16.0, 8.0, 4.0, 4.0]
    assert play(2, caps=[4.0], mode=Mode.FREE).in_force == [4.0, 4.0]


@pytest.mark.parametrize("mode", [Mode.GUARDED, Mode.FREE])
def test_changes_of_a_minute(mode: Mode, play: Play) -> None:
    """A knob changes as often as the operator allows in every minute, again when a minute is over,
    and not at all where that is 0; other knobs are free. The line and the log have the number."""
    caps: list[float | None] = [40.0, 32.0]
    played = play(130, mode=mode, caps=caps * 65, most_changes={"batch_cap": 3})
    every = [64.0, *played.in_force]
    moves = [after != before for before, after in itertools.pairwise(every)]
    minute = round(60.0 / WINDOW_S)
    sums = [sum(moves[start : start + minute]) for start in range(len(moves) - minute + 1)]
    assert max(sums) == 3 and sum(moves) == 9
    # In the window between them it wants the value that it has.
    assert moves[:3] == [True] * 3 and moves[minute + 1 : minute + 4] == [True] * 3
    assert [report.changes["batch_cap"] for report in played.reports[:5]] == [1, 2, 3, 3, 3]
    last = played.lines("window")[-1]
    assert last["changes"] == {"batch_cap": 3, "kv_budget_fraction": 0}
    assert played.deployment.values["kv_budget_fraction"] == 1.0  # after the lease
    first = {"batch_cap": 32, "kv_budget_fraction": pytest.approx(0.9)}
    assert played.deployment.commands[0] == first
    locked = play(6, mode=mode, caps=caps * 4, most_changes={"kv_budget_fraction": 0})
    told = [command for command in locked.deployment.commands if command is not None]
    assert [command["kv_budget_fraction"] for command in told] == [1.0] * 6
    assert locked.in_force == [32.0, 40.0] * 3


def test_falling_back_is_not_limited(play: Play) -> None:
    """The best static setting is told whatever a knob has done; a locked one then stays there."""
    fault = {4: lambda one: setattr(one, "engine_id", "b")}
    played = play(12, fault, most_changes={"batch_cap": 0, "kv_budget_fraction": 1})
    assert played.in_force == [64.0] * 4 + [48.0] * 8
    assert played.reasons[4] is not None and played.reasons[-1] is None
    told = [command for command in played.deployment.commands if command is not None]
    assert told[4] == {"batch_cap": 48, "kv_budget_fraction": 1.0}


def test_back_to_static_at_once(play: Play) -> None:
    """However far the policy has gone."""
    played = play(9, {6: lambda one: setattr(one, "engine_id", "b")}, caps=[2.0])
    assert played.in_force[5] == 2.0 and played.in_force[6] == 48.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda one: setattr(one, "unreachable", True), "the gateway cannot be reached"),
        (FAULTS["a knob is gone"][0], "the task turns batch_cap, which the deployment does not"),
        (FAULTS["metrics are garbage"][0], "kv_use is nan"),
    ],
)
def test_a_deployment_that_does_not_fit(
    change: Callable[[Deployment], object], message: str, play: Play
) -> None:
    """One sentence before anything is turned."""
    deployment = Deployment()
    change(deployment)
    with pytest.raises(InputError, match=message):
        play(3, deployment=deployment)
    assert deployment.commands == []


@pytest.mark.parametrize(("late", "begins"), [(4, True), (1000, False)])
def test_answers_may_be_late_before_the_first_window(late: int, begins: bool, play: Play) -> None:
    """They are asked for again, but not for ever; nothing is turned before the first is there."""
    deployment = Deployment()
    deployment.late = late
    if begins:
        assert play(3, deployment=deployment).reasons == [None] * 3
    else:
        with pytest.raises(InputError, match="the gateway did not answer within 1 s"):
            play(3, deployment=deployment)
        assert deployment.commands == []


def test_other_objectives_at_the_gateway(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goodput would be that of something else."""

    async def state(self: Deployment) -> dict[str, Any]:
        return {"objectives": {"chat": {"ttft_s": 0.5, "tpot_s": None}}}

    monkeypatch.setattr(Deployment, "state", state)
    with pytest.raises(InputError, match=r"start it with --slo chat:ttft=0\.5,tpot=0\.05"):
        play(3)


def test_a_log_that_cannot_be_written(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with one sentence, and the lease with it."""
    deployment = Deployment()

    def full(one: Deployment) -> None:
        def write(*arguments: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.write", write)

    with pytest.raises(InputError, match=r"--log is .*: No space left on device"):
        play(6, {3: full}, deployment=deployment)
    assert deployment.commands[-1] is None
