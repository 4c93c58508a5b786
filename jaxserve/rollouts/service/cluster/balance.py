"""Which node gets which session. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

UP, DRAINING, SILENT = "up", "draining", "silent"


@dataclass(frozen=True)
class NodeStatus:
    """A node at one moment."""

    id: str
    """its name."""
    health: str
    """``up``, ``draining``, or ``silent`` where no heartbeat came for too long."""
    slots: int
    """sessions that it prepares and runs at a time."""
    held: int = 0
    """those that it has."""
    models: tuple[str, ...] = ()
    """that it serves; none serves all."""

    def takes(self, model: str) -> bool:
        """Whether it may be given one more session."""
        served = not self.models or model in self.models
        return self.health == UP and self.held < self.slots and served


def node_health(silence_s: float, draining: bool, silent_s: float) -> str:
    """Of a node.

    Args:
      silence_s: since its last heartbeat.
      draining: whether it is to get no more sessions.
      silent_s: after which a node counts as silent.
    """
    if silence_s > silent_s:
        return SILENT
    return DRAINING if draining else UP


def assign_sessions(
    nodes: Iterable[NodeStatus], waiting: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Sessions with the node that each gets, in their order; others go on waiting.

    The node with the smallest share of its slots in use is next, and the first of equals.

    Args:
      waiting: sessions with the model that each asks for.
    """
    now, found = {node.id: node for node in nodes}, []
    for session, model in waiting:
        free = [node for node in now.values() if node.takes(model)]
        if free:
            least = min(free, key=lambda node: (node.held / node.slots, node.id))
            now[least.id] = replace(least, held=least.held + 1)
            found.append((session, least.id))
    return found
