"""Replay of logged windows, each by the program that first computed it."""

from __future__ import annotations

from collections.abc import Sequence

from server.request_errors import EpisodeConflict
from server.sessions import programs
from server.sessions.programs import ProgramOutput, Window, WindowColumns
from server.sessions.session import Session
from server.sessions.store import LoggedStep

_REWARD_TOLERANCE = 1e-3
"""Tolerance relative to max(1, |reward|): another machine may round differently."""
_BLOCK = 128
"""Windows of each session that are computed before any is read, which bounds memory."""


def catch_up(session: Session, steps: Sequence[LoggedStep]) -> list[Window]:
    """Replays logged windows of a session; returns them.

    Raises:
      EpisodeConflict: the replayed rewards differ from the acknowledged ones.
    """
    windows: list[Window] = []
    for first in range(0, len(steps), _BLOCK):
        block = steps[first : first + _BLOCK]
        (shown,) = _computed([session], [block])
        _append(session, shown, block)
        windows += [shown.of(place) for place in range(len(block))]
    return windows


def catch_up_together(
    sessions: Sequence[Session], steps: Sequence[Sequence[LoggedStep]]
) -> list[EpisodeConflict | None]:
    """Replays the logged windows of up to ``programs.BATCH_SIZE`` sessions of one environment.

    Returns:
      For each session the error that ``catch_up`` would raise, or None.
    """
    problems: list[EpisodeConflict | None] = [None] * len(sessions)
    longest = max(map(len, steps), default=0)
    for first in range(0, longest, _BLOCK):
        going = [i for i, problem in enumerate(problems) if not problem and len(steps[i]) > first]
        blocks = [steps[i][first : first + _BLOCK] for i in going]
        for i, shown, block in zip(
            going, _computed([sessions[i] for i in going], blocks), blocks, strict=True
        ):
            try:
                _append(sessions[i], shown, block)
            except EpisodeConflict as problem:
                problems[i] = problem
    return problems


def _computed(
    sessions: Sequence[Session], steps: Sequence[Sequence[LoggedStep]]
) -> list[WindowColumns]:
    """The windows of each session, at least one; advances the sessions' states."""
    simulator = sessions[0].simulator if sessions else None
    shown: list[list[tuple[ProgramOutput, int]]] = [[] for _ in sessions]
    going = list(range(len(sessions)))
    while going and simulator is not None:
        together = []
        for i in going:
            _through_single_windows(sessions[i], steps[i], shown[i])
            if len(shown[i]) < len(steps[i]):
                together.append(i)
        if together:
            lanes, outcome = programs.advance_together(
                simulator,
                [sessions[i].state for i in together],
                [steps[i][len(shown[i])].knobs for i in together],
            )
            for place, (i, lane) in enumerate(zip(together, lanes, strict=True)):
                sessions[i].state = lane
                shown[i].append((outcome, place))
        going = together
    return [programs.read_in_turn(outcomes) for outcomes in shown]


def _through_single_windows(
    session: Session, steps: Sequence[LoggedStep], shown: list[tuple[ProgramOutput, int]]
) -> None:
    """Replays windows up to the next one that was advanced together, or to the end."""
    while len(shown) < len(steps) and not steps[len(shown)].together:
        knobs = steps[len(shown)].knobs
        session.state, outcome = programs.advance(session.simulator, session.state, knobs)
        shown.append((outcome, 0))


def _append(session: Session, shown: WindowColumns, steps: Sequence[LoggedStep]) -> None:
    for place, step in enumerate(steps):
        if abs(shown.reward[place] - step.reward) > _REWARD_TOLERANCE * max(1.0, abs(step.reward)):
            raise EpisodeConflict(
                f"session {session.id!r} was played on another version of the simulator; "
                "reset it to go on"
            )
        session.append(session.state, shown, place, step.knobs, step.driven)
    # Only the last window is kept.
    session.windows, session.place = shown.only(len(steps) - 1), 0
