"""Registry of nodes: registration, heartbeats, assignment of sessions, loss of a node.

Leases are kept in the database only, so that no heartbeat can change them. The time of a node's
last heartbeat is kept in this process only: after a restart every node has time to send one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from jaxserve.checks import JsonObject, address, refuse
from jaxserve.rollouts.service.settings import NODE_NAME, POOLS, RolloutSettings
from jaxserve.rollouts.service.state import lifecycle
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.lifecycle import Lease
from jaxserve.runtime.hosts import is_loopback

_MOST_WAITING = 10_000
"""Waiting sessions considered per scheduling pass."""
UP, DRAINING, SILENT = "up", "draining", "silent"


@dataclass(frozen=True)
class NodeStatus:
    """State of a node at one moment."""

    id: str
    """name of the node."""
    health: str
    """``up``, ``draining``, or ``silent`` after too long without a heartbeat."""
    slots: int
    """sessions that the node prepares and runs at the same time."""
    held: int = 0
    """sessions that the node holds."""
    models: tuple[str, ...] = ()
    """models that the node serves; all models where empty."""

    def takes(self, model: str) -> bool:
        """Whether the node may get one more session of a model."""
        served = not self.models or model in self.models
        return self.health == UP and self.held < self.slots and served


@dataclass
class _Heartbeat:
    """The last heartbeat of a node."""

    at_s: float
    load: Any = None


class UnknownNode(Exception):
    """The node, or this process of it, is not registered."""


class NodeRegistry:
    """All nodes of a service."""

    def __init__(
        self,
        state: StateDatabase,
        settings: RolloutSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: the database, the settings, and a clock, s."""
        self._state, self._settings, self._clock = state, settings, clock
        self._heartbeats: dict[str, _Heartbeat] = {}
        self._began_s = clock()

    def register(self, fields: JsonObject, *, elsewhere: bool = False) -> str:
        """Registers a node and returns its name; an earlier process of the node counts as lost.

        Args:
          elsewhere: whether the node is on another machine, where a loopback address is wrong.

        Raises:
          InputError: a field is wrong.
        """
        id, start = fields.text("id"), fields.text("start")
        if not NODE_NAME.fullmatch(id):
            refuse(fields.name("id"), id, "up to 64 letters, digits, - and _, no - or _ first")
        pools = fields.inside("pools", POOLS)
        models = fields.get("models", [])
        if not isinstance(models, list) or not all(isinstance(one, str) for one in models):
            refuse(fields.name("models"), models, "a list of names")
        control = address(fields.name("control"), fields.get("control"))
        if elsewhere and _is_of_this_machine(control):
            allowed = "one at which the service reaches the node's machine (--control-url)"
            refuse(fields.name("control"), control, allowed)
        about = {
            "pools": {name: pools.whole(name, 1, 1024) for name in POOLS},
            "models": models,
            "gateway": address(fields.name("gateway"), fields.get("gateway")),
            "control": control,
        }
        if self._state.start_of(id) not in (None, start):
            # Before the new registration: open keys are at the gateway of the old one.
            self._state.take_back(id, self._settings.attempts, resumes=True)
        self._state.put_node(id, start, about)
        self._heartbeats[id] = _Heartbeat(self._clock())
        return id

    def heartbeat(self, id: str, start: str, load: Any = None) -> None:
        """Notes a heartbeat.

        Args:
          load: load of the node's engines, for display.

        Raises:
          UnknownNode: the node has to register first.
        """
        if not any((id, start) == node[:2] for node in self._state.nodes()):
            raise UnknownNode
        self._heartbeats[id] = _Heartbeat(self._clock(), load)

    def alive(self, id: str, load: Any) -> None:
        """Notes a heartbeat of the service's own node, which lives as long as the service."""
        self._heartbeats[id] = _Heartbeat(self._clock(), load)

    def leases(self, id: str) -> list[Lease]:
        """All leases of a node."""
        specs: dict[str, Any] = {}
        found = []
        for session in self._state.held_by(id):
            if session.task not in specs:
                specs[session.task] = self._state.spec(session.task)
            found.append(Lease(session, specs[session.task]))
        return found

    def drain(self, id: str, draining: bool) -> None:
        """Sets whether a node gets no more sessions.

        Raises:
          InputError: no such node has registered.
        """
        if all(id != node[0] for node in self._state.nodes()):
            refuse("node", id, "one that has registered")
        self._state.drain(id, draining)

    def leave(self, id: str, start: str) -> None:
        """Ends a node; its sessions begin on other nodes.

        Raises:
          UnknownNode: the node is not registered.
        """
        self.heartbeat(id, start)
        self._heartbeats[id] = _Heartbeat(-float("inf"))
        self._state.take_back(id, self._settings.attempts, resumes=False)

    def schedule(self) -> None:
        """Takes sessions of lost nodes, assigns waiting sessions, and ends those that waited too
        long."""
        nodes = self.statuses()
        for node in nodes:
            if node.health == SILENT and self._state.held_by(node.id):
                self._state.take_back(node.id, self._settings.attempts, resumes=False)
        waiting = self._state.waiting(_MOST_WAITING)
        if not waiting:
            return
        for session, node in assign_sessions(nodes, [(id, model) for id, model, _ in waiting]):
            self._state.give(session, node)
        late = time.time() - self._settings.queue_s
        for id, _, since in waiting:
            session = self._state.session(id)
            if since < late and session.node is None:
                reason = f"no node took it within {self._settings.queue_s:g} s"
                self._state.move(
                    id, lifecycle.ERROR, reason, session.lease, result=session.no_result
                )

    def statuses(self) -> list[NodeStatus]:
        """The status of every node."""
        loads = self._state.loads()
        now = self._clock()
        found = []
        for id, _, about, draining in self._state.nodes():
            silence_s = now - (
                self._heartbeats[id].at_s if id in self._heartbeats else self._began_s
            )
            held = sum(
                count
                for state, count in loads.get(id, {}).items()
                if state not in lifecycle.AFTER_RUN
            )
            pools = about["pools"]
            found.append(
                NodeStatus(
                    id,
                    node_health(silence_s, draining, self._settings.silent_s),
                    pools["init"] + pools["run"],
                    held,
                    tuple(about["models"]),
                )
            )
        return found

    def control_of(self, id: str) -> str | None:
        """Address of the control port of a node's gateway; None for an unknown node."""
        return next((one[2]["control"] for one in self._state.nodes() if one[0] == id), None)

    def describe(self) -> list[dict[str, Any]]:
        """Every node with its status, load and registration, as JSON."""
        statuses = {status.id: status for status in self.statuses()}
        loads: Mapping[str, Any] = self._state.loads()
        return [
            {
                "id": id,
                "health": statuses[id].health,
                "slots": statuses[id].slots,
                "held": statuses[id].held,
                "states": loads.get(id, {}),
                "load": self._heartbeats[id].load if id in self._heartbeats else None,
                **about,
            }
            for id, _, about, _ in self._state.nodes()
        ]


def node_health(silence_s: float, draining: bool, silent_s: float) -> str:
    """Health of a node.

    Args:
      silence_s: time since the last heartbeat.
      draining: whether the node gets no more sessions.
      silent_s: longest time without a heartbeat.
    """
    if silence_s > silent_s:
        return SILENT
    return DRAINING if draining else UP


def assign_sessions(
    nodes: Iterable[NodeStatus], waiting: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Pairs of session and node, in the order of the sessions; the others keep waiting.

    A session gets the node with the smallest share of its slots in use, ties by name.

    Args:
      waiting: pairs of session and model.
    """
    current, found = {node.id: node for node in nodes}, []
    for session, model in waiting:
        free = [node for node in current.values() if node.takes(model)]
        if free:
            least = min(free, key=lambda node: (node.held / node.slots, node.id))
            current[least.id] = replace(least, held=least.held + 1)
            found.append((session, least.id))
    return found


def _is_of_this_machine(url: str) -> bool:
    """Whether a checked address is a loopback or unspecified one, which every machine has."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    return is_loopback(host) or host in ("0.0.0.0", "::")
