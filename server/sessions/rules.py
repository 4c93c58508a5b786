"""What a request needs of a session, and the sentence where that is not so."""

from __future__ import annotations

from server.request_errors import EpisodeConflict, UnknownSession
from server.sessions.session import Session

NO_DEFAULT = "session_id is missing; this server asks for a token and has no default session"
NOT_BEGUN = "no episode has been started; call reset first"


def unknown(session_id: str | None) -> UnknownSession:
    """What to say of a session that is not there."""
    return UnknownSession(f"session {session_id!r} does not exist")


def check_running(session_id: str, steps: int, over: bool) -> None:
    """Raises EpisodeConflict where the episode is over."""
    if over:
        raise EpisodeConflict(
            f"the episode of session {session_id!r} is over after {steps} windows; "
            "reset starts another"
        )


def check_window(session: Session, number: int | None) -> None:
    """Raises EpisodeConflict where a step is meant to be another window than the next."""
    if number is not None and number != session.steps:
        raise EpisodeConflict(
            f"metadata.step is {number}; session {session.id!r} is at window {session.steps}"
        )
