"""What a session goes through: its states, from REGISTERED to its end, and where one stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxserve.rollouts.traces import COMPLETED, ERROR, TIMEOUT

REGISTERED = "REGISTERED"
INITIALIZING = "INITIALIZING"
READY = "READY"
RUNNING = "RUNNING"
POST_RUN = "POST_RUN"
BUILDING = "BUILDING"
EVALUATING = "EVALUATING"
ENDED = (COMPLETED, ERROR, TIMEOUT)
"""States that a session does not leave."""
BEFORE_RUN = (REGISTERED, INITIALIZING, READY)
"""States in which the agent has done nothing."""
AFTER_RUN = (POST_RUN, BUILDING, EVALUATING)
"""States in which all that the agent did is there."""
STATES = (*BEFORE_RUN, RUNNING, *AFTER_RUN, *ENDED)


@dataclass(frozen=True)
class SessionRow:
    """Where a session stands."""

    id: str
    """``TASK.SAMPLE``."""
    task: str
    """its task's name."""
    sample: int
    """its number in the task, from 0."""
    node: str | None
    """that has it; None waits for one."""
    lease: int
    """how often a node was given it; who has an older lease has it no more."""
    attempt: int
    """how often it began."""
    state: str
    """one of ``STATES``."""
    since: float
    """when it came to be in this state, s since 1970."""
    reason: str
    """of an end that is not COMPLETED."""
    episode: Any
    """of the environment, as JSON; None where none was begun."""
    run: Any
    """how the agent ended, as JSON; None before."""
    result: Any
    """of an ended one, as JSON."""

    @property
    def recorded(self) -> str:
        """The gateway's session of its last attempt."""
        return f"{self.id}.{self.attempt}"

    @property
    def no_result(self) -> dict[str, Any]:
        """Where it ends before it was evaluated; what was recorded of it is named."""
        said = {"records": self.recorded, "attempt": self.attempt} if self.attempt else {}
        return {"reward": None, **said}
