"""Actuators start and stop replicas: processes of this machine, or the pods of a cluster."""

from __future__ import annotations

from typing import Protocol


class ActuatorError(Exception):
    """Replicas could not be counted, started or stopped; ``str()`` is the reason, one sentence."""


class Actuator(Protocol):
    """Replicas in numbered places; place 0 is stopped last.

    Both methods may be called again and again with the same number: a controller that was killed
    and started anew goes on where it was.
    """

    async def size(self) -> int:
        """Replicas that run or start: one more than the highest place in use.

        Raises:
          ActuatorError: the replicas cannot be counted.
        """
        ...

    async def resize(self, count: int) -> None:
        """Starts replicas in all places below ``count`` that are empty, and stops the others.

        Raises:
          ActuatorError: a replica could not be started or stopped.
        """
        ...
