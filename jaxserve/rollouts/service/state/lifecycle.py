"""States of a session from REGISTERED to its end, its row, and its lease to a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
"""States before the agent has done anything."""
AFTER_RUN = (POST_RUN, BUILDING, EVALUATING)
"""States after the agent has ended."""
STATES = (*BEFORE_RUN, RUNNING, *AFTER_RUN, *ENDED)


@dataclass(frozen=True)
class SessionRow:
    """A session as the database has it."""

    id: str
    """``TASK.SAMPLE``."""
    task: str
    """name of the task."""
    sample: int
    """number in the task, from 0."""
    node: str | None
    """node that holds the session; None while it waits for one."""
    lease: int
    """number of times that a node was given the session; an older lease is void."""
    attempt: int
    """number of times that the session began."""
    state: str
    """one of ``STATES``."""
    since: float
    """time of the last change of state, s since 1970."""
    reason: str
    """reason of an end that is not COMPLETED."""
    episode: Any
    """episode of the environment, as JSON; None where none was begun."""
    run: Any
    """the agent's end (``AgentRun``), as JSON; None before."""
    result: Any
    """result of an ended session, as JSON."""

    @property
    def recorded(self) -> str:
        """Name of the gateway's session of the last attempt."""
        return f"{self.id}.{self.attempt}"

    @property
    def no_result(self) -> dict[str, Any]:
        """Result of a session that ends without an evaluation; names its records, if any."""
        records = {"records": self.recorded, "attempt": self.attempt} if self.attempt else {}
        return {"reward": None, **records}


class SessionSpan(NamedTuple):
    """The times and figures of a session, for charts."""

    ended: bool
    """whether the session has ended."""
    since: float
    """last change of state, s since 1970."""
    began: float | None
    """start of the agent in the last attempt, s since 1970; None before."""
    left: float | None
    """end of the agent, s since 1970; None while it runs."""
    tokens: int
    """sampled tokens, known from the session's end on."""
    reward: float | None
    """reward; None without a grade."""


@dataclass(frozen=True)
class Lease:
    """A session that a node holds."""

    session: SessionRow
    """the session as it was when the node got it."""
    spec: Mapping[str, Any]
    """the task as submitted."""

    @property
    def key(self) -> tuple[str, int]:
        """Session and lease number, which identify the lease."""
        return self.session.id, self.session.lease

    def to_json(self) -> dict[str, Any]:
        """The lease as sent to a node."""
        return {"session": vars(self.session), "spec": self.spec}


def lease_from_json(sent: Mapping[str, Any]) -> Lease:
    """The inverse of ``Lease.to_json``."""
    return Lease(SessionRow(**sent["session"]), sent["spec"])
