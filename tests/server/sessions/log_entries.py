"""What tests write to a log."""

from __future__ import annotations

from server.sessions.store import LoggedStep, NewEpisode, NewStep

STEP = LoggedStep(together=False, reward=0.25, knobs=(1.0, 0.5, 0.0, 2.0, 0.0, 1.0, 3.0))


def begin(session: str = "s", episode: int = 1) -> NewEpisode:
    return NewEpisode(session, episode, "mine", '{"task": "x"}')


def step(number: int, session: str = "s", episode: int = 1) -> NewStep:
    return NewStep(session, episode, number, STEP)
