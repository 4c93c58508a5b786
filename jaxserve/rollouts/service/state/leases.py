"""What a node is told of a session that it is to bring to its end, and how it tells of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from jaxserve.rollouts.service.state.lifecycle import SessionRow


@dataclass(frozen=True)
class Lease:
    """A session that a node has."""

    session: SessionRow
    """as it stood when it was given."""
    spec: Mapping[str, Any]
    """its task, as it was submitted."""

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from others."""
        return self.session.id, self.session.lease

    def to_json(self) -> dict[str, Any]:
        """For a node elsewhere."""
        return {"session": vars(self.session), "spec": self.spec}


def lease_from_json(told: Mapping[str, Any]) -> Lease:
    """What ``to_json`` gave."""
    return Lease(SessionRow(**told["session"]), told["spec"])


class SessionWriter(Protocol):
    """Where sessions stand."""

    async def move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """Brings a session to a state; False where the lease is over. Does not give up.

        Args:
          values: columns of the state to set.
          line: of its trajectory, for an end; empty where there is none.
        """
        ...
